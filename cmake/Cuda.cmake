# OVERTURE_HAVE_CUDA tells whether the CUDA parts are built: machine code for
# compute capability 8.x and 9.0, and PTX of 8.0 that later cards compile at
# load time. Override CMAKE_CUDA_ARCHITECTURES to build for them ahead of it.
set(OVERTURE_HAVE_CUDA OFF)
if(NOT OVERTURE_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80 90-real)
    endif()
    enable_language(CUDA)
    # CMake 3.25 does not know that nvcc 12 and later speak C++20; a standard
    # set before enable_language would fail its own compiler check.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    find_package(CUDAToolkit 12.3)
    if(CUDAToolkit_FOUND)
      set(OVERTURE_HAVE_CUDA ON)
    elseif(OVERTURE_CUDA STREQUAL "ON")
      message(FATAL_ERROR "OVERTURE_CUDA=ON needs a CUDA toolkit of 12.3 or "
                          "later")
    endif()
  elseif(OVERTURE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "OVERTURE_CUDA=ON, but no CUDA compiler was found")
  endif()
endif()
message(STATUS "CUDA parts: ${OVERTURE_HAVE_CUDA}")
