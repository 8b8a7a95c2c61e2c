# Two functions that every folder uses, so that flags and link rules live here.

find_program(OVERTURE_CCACHE ccache)
if(OVERTURE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${OVERTURE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${OVERTURE_CCACHE})
endif()

# Flags for our own targets; third-party code never sees them.
add_library(overture_flags INTERFACE)
target_include_directories(overture_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(overture_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-missing-field-initializers>)
if(OVERTURE_SANITIZE)
  # protobuf and gRPC are not instrumented: vptr checks across them mislead.
  target_compile_options(overture_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${OVERTURE_SANITIZE}
    -fno-sanitize=vptr -fno-sanitize-recover=all -fno-omit-frame-pointer>)
  target_link_options(overture_flags INTERFACE
    -fsanitize=${OVERTURE_SANITIZE} -fno-sanitize=vptr)
endif()

if(OVERTURE_FUZZ)
  # Coverage feedback in every library; only the fuzzers link libFuzzer itself.
  target_compile_options(overture_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# overture_library(<folder> SOURCES ... DEPS ...)
# One static library per folder; its DEPS are the arrows of docs/design.md.
function(overture_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(overture_${name} STATIC ${ARG_SOURCES})
  add_library(overture::${name} ALIAS overture_${name})
  target_link_libraries(overture_${name} PUBLIC ${ARG_DEPS}
                                         PRIVATE overture_flags)
  target_include_directories(overture_${name} PUBLIC ${PROJECT_SOURCE_DIR})
endfunction()

# overture_binary(<name> SOURCES ... DEPS ...)
function(overture_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} overture_flags)
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# overture_test(<name> LABEL cpu|gpu|e2e SOURCES ... DEPS ... [TIMEOUT s])
# One ctest entry per file. Several test files may share one binary elsewhere
# only if they share a fixture. Target <label>_tests builds all of a label.
function(overture_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  if(OVERTURE_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} overture::test_support
    GTest::gmock GTest::gtest_main overture_flags)
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(NOT TARGET ${ARG_LABEL}_tests)
    add_custom_target(${ARG_LABEL}_tests)
  endif()
  add_dependencies(${ARG_LABEL}_tests ${name})
  add_test(NAME ${name} COMMAND ${name}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # Tests that run side by side share the cores: OpenMP's idle threads must not
  # spin on them (engine/passive_waits.h).
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL}
                                          TIMEOUT ${ARG_TIMEOUT}
                                          ENVIRONMENT OMP_WAIT_POLICY=passive)
endfunction()
