# Compiler options for every target of this project. Included once by CMakeLists.txt.
# Floating-point arithmetic follows IEEE everywhere, because results must not depend on the optimiser's choices: there
# is no fast-math and no automatic contraction (kernels call fused multiply-adds explicitly).
find_package(Threads REQUIRED)

function(rapt_defaults target)
  set_target_properties(${target} PROPERTIES
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  # A project that embeds rapt can have no build type. Without this line rapt would get -O0 then, and be 20 times
  # slower.
  target_compile_options(${target} PRIVATE $<$<CONFIG:>:-O3>)
  if(PROJECT_IS_TOP_LEVEL)
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      # g++ 12 warns about its own std::sort of short arrays and std::string's operator+ (fixed in 13).
      target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-restrict)
    endif()
  endif()
  if(RAPT_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

# For command lines, reports and tests. Their code need not be fast, and -O3 would double their build time. With -Og g++
# takes a quarter less time than with -O1. With a sanitizer, clang takes several times longer for -O1, so they are not
# optimised then.
function(rapt_build_quickly target)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    target_compile_options(${target} PRIVATE -O0)
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-Og>)
  endif()
endfunction()

# rapt_precompile(target headers...): external headers are parsed once instead of in every file. Files still include the
# headers that they use. It does nothing with ccache, because ccache recompiles every file that uses a precompiled
# header.
function(rapt_precompile target)
  get_target_property(launcher ${target} CXX_COMPILER_LAUNCHER)
  if(NOT launcher MATCHES "ccache")
    target_precompile_headers(${target} PRIVATE ${ARGN})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      # If a precompiled header is used, g++ 12 also warns about std::string's operator+ (char_traits.h).
      target_compile_options(${target} PRIVATE -Wno-stringop-overflow -Wno-stringop-overread)
    endif()
  endif()
endfunction()
