// Register lists of inline PTX: an instruction that owns an array of registers
// names each of them, once as an operand and once in its text.
//
//   asm volatile("op {" OVERTURE_OPERANDS_32 "}, %32;"
//                : OVERTURE_REGISTERS_32("+r", d) : "l"(b));
#pragma once

#define OVERTURE_REGISTERS_4(constraint, d, i)                            \
  constraint((d)[i]), constraint((d)[(i) + 1]), constraint((d)[(i) + 2]), \
      constraint((d)[(i) + 3])
#define OVERTURE_REGISTERS_16(constraint, d, i)     \
  OVERTURE_REGISTERS_4(constraint, d, i),           \
      OVERTURE_REGISTERS_4(constraint, d, (i) + 4), \
      OVERTURE_REGISTERS_4(constraint, d, (i) + 8), \
      OVERTURE_REGISTERS_4(constraint, d, (i) + 12)
#define OVERTURE_REGISTERS_32(constraint, d) \
  OVERTURE_REGISTERS_16(constraint, d, 0),   \
      OVERTURE_REGISTERS_16(constraint, d, 16)
#define OVERTURE_REGISTERS_48(constraint, d) \
  OVERTURE_REGISTERS_32(constraint, d), OVERTURE_REGISTERS_16(constraint, d, 32)
#define OVERTURE_REGISTERS_64(constraint, d) \
  OVERTURE_REGISTERS_48(constraint, d), OVERTURE_REGISTERS_16(constraint, d, 48)

#define OVERTURE_OPERANDS_32                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
  "%30, %31"
#define OVERTURE_OPERANDS_48                                                 \
  OVERTURE_OPERANDS_32                                                       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
  "%46, %47"
#define OVERTURE_OPERANDS_64                                                 \
  OVERTURE_OPERANDS_48                                                       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
  "%62, %63"
