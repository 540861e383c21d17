# Builds the tests: rapt_tests from tests/cpu and rapt_gpu_tests from tests/gpu (GoogleTest), the examples, and the fuzz
# harnesses. Included by CMakeLists.txt.
# ctest runs one process for each GoogleTest suite. It lists the suites when it starts (cmake/gtest_suites.cmake).
enable_testing()
set(RAPT_TEST_FILES "" CACHE STRING
  "Regular expression of files in tests/cpu: build only those tests, without the program, GPU tests and examples")
set(RAPT_TEST_FILES_LEFT_OUT "" CACHE STRING "Regular expression of files in tests/cpu: build all other tests")

# rapt_test_program(name sources...): adds a GoogleTest program. It links everything except libc statically, so it can
# be copied to another machine. ctest runs its suites.
function(rapt_test_program name)
  add_executable(${name} ${ARGN})
  rapt_defaults(${name})
  rapt_build_quickly(${name})
  rapt_precompile(${name} <gtest/gtest.h> <algorithm> <array> <cmath> <filesystem> <fstream> <functional> <map> <memory>
    <string> <vector>)
  target_compile_definitions(${name} PRIVATE RAPT_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    RAPT_BINARY_DIR="${PROJECT_BINARY_DIR}")
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")  # emulated kernels have #pragma unroll; clang warns if it does not unroll
    target_compile_options(${name} PRIVATE -Wno-pass-failed)
  endif()
  target_link_libraries(${name} PRIVATE rapt_check GTest::gtest)
  if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
  set(executable "${PROJECT_BINARY_DIR}/${name}")
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/${name}.cmake" @ONLY CONTENT
    "set(executable \"@executable@\")\ninclude(\"@PROJECT_SOURCE_DIR@/cmake/gtest_suites.cmake\")\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${PROJECT_BINARY_DIR}/${name}.cmake")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
endfunction()

if(RAPT_BUILD_TESTS)
  find_package(GTest CONFIG QUIET)
  file(GLOB test_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/cpu/*.cpp")
  if(NOT GTest_FOUND OR NOT rapt_has_lab)
    message(WARNING "rapt: tests are left out: they need GoogleTest and what the program needs (Debian and Ubuntu: "
      "libgtest-dev libfmt-dev nlohmann-json3-dev libcli11-dev)")
  elseif(test_sources)
    if(RAPT_TEST_FILES)
      list(FILTER test_sources INCLUDE REGEX "/tests/cpu/(${RAPT_TEST_FILES})\\.cpp$")
    endif()
    if(RAPT_TEST_FILES_LEFT_OUT)
      list(FILTER test_sources EXCLUDE REGEX "/tests/cpu/(${RAPT_TEST_FILES_LEFT_OUT})\\.cpp$")
    endif()
    # support.cpp must come first. The linker keeps the first copy of an inline function. With a sanitizer, the copies
    # in support.cpp are optimised, and the copies in other test files are not (rapt_build_quickly).
    rapt_test_program(rapt_tests tests/cpu/support.cpp ${test_sources} tests/gpu/allocations.cpp)
    set_source_files_properties(tests/cpu/support.cpp PROPERTIES COMPILE_OPTIONS -O1 SKIP_PRECOMPILE_HEADERS ON)
    target_link_libraries(rapt_tests PRIVATE GTest::gtest_main)
    if(NOT RAPT_TEST_FILES)
      target_link_libraries(rapt_tests PRIVATE rapt_lab)
    endif()
    # These tests emulate device sources: their include path has the stand-ins (lab/emulation) before the real headers.
    file(GLOB emulation_tests CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/cpu/*_emulation_test.cpp")
    set_source_files_properties(${emulation_tests} PROPERTIES INCLUDE_DIRECTORIES
        "${PROJECT_SOURCE_DIR}/lab/emulation;${PROJECT_SOURCE_DIR}/lab/ladder;${PROJECT_SOURCE_DIR}/src/kernels"
      COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1>;-fno-strict-aliasing;-Wno-unknown-pragmas;-Wno-parentheses"
      SKIP_PRECOMPILE_HEADERS ON)
    if(TARGET rapt_program AND NOT RAPT_TEST_FILES)
      add_dependencies(rapt_tests rapt_program)  # tests of the command line run build/rapt
    endif()

    # A stand-in for the CUDA driver, used in processes that tests start. It has the file name that src/cuda opens.
    add_library(fake_cuda SHARED tests/fake_cuda/fake_cuda.cpp)
    rapt_defaults(fake_cuda)
    target_include_directories(fake_cuda PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
    target_link_libraries(fake_cuda PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
    set_target_properties(fake_cuda PROPERTIES OUTPUT_NAME cuda SOVERSION 1
      LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/fake_cuda")
    add_dependencies(rapt_tests fake_cuda)
    # A stand-in for NVML (lab/gpu_clocks.cpp).
    add_library(fake_nvml SHARED tests/fake_nvml/fake_nvml.cpp)
    rapt_defaults(fake_nvml)
    set_target_properties(fake_nvml PROPERTIES OUTPUT_NAME nvidia-ml SOVERSION 1
      LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/fake_nvml")
    add_dependencies(rapt_tests fake_nvml)
    # A stand-in for NVRTC. Tests copy it to the places where it should be found.
    add_library(fake_nvrtc SHARED tests/fake_nvrtc/fake_nvrtc.cpp)
    rapt_defaults(fake_nvrtc)
    # The library searches for texts in the constants of NVRTC's file. A sanitizer would put unreadable memory between
    # the constants.
    if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
      target_compile_options(fake_nvrtc PRIVATE -fno-sanitize=all)
    endif()
    set_target_properties(fake_nvrtc PROPERTIES OUTPUT_NAME nvrtc
      LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/fake_nvrtc")
    add_dependencies(rapt_tests fake_nvrtc)
  endif()
endif()

if(RAPT_BUILD_TESTS AND NOT RAPT_TEST_FILES)
  if(TARGET rapt_tests AND RAPT_BUILD_GPU_TESTS)
    # Without a GPU, tests that need one are skipped and counted.
    file(GLOB gpu_test_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/gpu/*.cpp")
    file(GLOB gpu_test_kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/gpu/*.cuh")
    rapt_test_program(rapt_gpu_tests ${gpu_test_sources} tests/cpu/support.cpp tests/cpu/two_steps.cpp)
    rapt_embed(rapt_gpu_tests rapt::test::device_sources "${PROJECT_SOURCE_DIR}/tests/gpu" ${gpu_test_kernels})
  endif()

  # Programs that are compiled with the header of another version, and run with this library.
  foreach(caller older_caller newer_caller)
    add_executable(abi_${caller} tests/abi/${caller}.cpp)
    rapt_defaults(abi_${caller})
    if(caller STREQUAL "newer_caller")
      target_include_directories(abi_${caller} PRIVATE "${PROJECT_SOURCE_DIR}/include")
    endif()
    target_link_libraries(abi_${caller} PRIVATE "$<TARGET_FILE:rapt_shared>")  # the library without its include folder
    add_dependencies(abi_${caller} rapt_shared)
    add_test(NAME abi_${caller} COMMAND abi_${caller})
  endforeach()

  # Measures the host cost of a call and compares it with a bare launch. Run it by hand. It needs a GPU, or the tests'
  # stand-in for the driver.
  add_executable(bench_host_overhead bench/host_overhead.cpp bench/host_overhead_front.cpp)
  rapt_defaults(bench_host_overhead)
  target_link_libraries(bench_host_overhead PRIVATE rapt_core)
  set_target_properties(bench_host_overhead PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")

  # Every example is its own program linked to the shared library. It passes if it exits with 0.
  file(GLOB example_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/*.cpp" "${PROJECT_SOURCE_DIR}/examples/*.c")
  if(example_sources MATCHES "\\.c(;|$)")
    enable_language(C)
  endif()
  find_package(CUDAToolkit QUIET)  # only for attention_cuda.cpp, which is skipped without it
  foreach(source ${example_sources})
    cmake_path(GET source FILENAME file)
    string(REPLACE "." "_" name "example_${file}")
    add_executable(${name} "${source}")
    set_target_properties(${name} PROPERTIES C_STANDARD 99 CXX_STANDARD 20 CXX_EXTENSIONS OFF C_EXTENSIONS OFF
      LINKER_LANGUAGE CXX  # the C++ flags contain the sanitizers (tests/consumer tests linking with the C compiler)
      RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/examples")
    target_compile_options(${name} PRIVATE -Wall -Wextra $<$<BOOL:${RAPT_WERROR}>:-Werror>)
    target_link_libraries(${name} PRIVATE rapt::rapt m)
    if(file MATCHES "cuda" AND CUDAToolkit_FOUND)
      target_link_libraries(${name} PRIVATE CUDA::cudart_static)
    endif()
    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  endforeach()
endif()

if(RAPT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "RAPT_FUZZ: libFuzzer needs clang, CMAKE_CXX_COMPILER is ${CMAKE_CXX_COMPILER_ID}")
  endif()
  # The files that parse untrusted bytes report their coverage to libFuzzer. Use a tree with the address sanitizer.
  set_source_files_properties(src/problem/parse.cpp src/problem/validate.cpp src/runtime/tuned_rows.cpp lab/file.cpp
    lab/npy.cpp lab/safetensors.cpp
    PROPERTIES COMPILE_OPTIONS "-fsanitize=fuzzer-no-link;-O1" SKIP_PRECOMPILE_HEADERS ON)
  file(GLOB fuzz_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/fuzz/*_fuzz.cpp")
  foreach(source ${fuzz_sources})
    cmake_path(GET source STEM name)
    add_executable(${name} "${source}")
    rapt_defaults(${name})
    target_link_libraries(${name} PRIVATE rapt_lab)
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer-no-link)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/fuzz")
  endforeach()
endif()
