# Compiler options for every target of this project. Included once by CMakeLists.txt.
# Floating point follows IEEE everywhere: no fast-math, and no automatic contraction (the kernels contain fused products
# explicitly), because bits must not depend on the optimiser's choices.
find_package(Threads REQUIRED)

function(rapt_defaults target)
  set_target_properties(${target} PROPERTIES
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  # Without this, a project that embeds rapt without a build type would get -O0, 20 times slower.
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

# For command lines, reports and tests: they need no speed, and -O3 would double their build time. g++ compiles them a
# quarter faster with -Og than with -O1. Under a sanitizer clang takes several times longer for -O1, so there they are
# not optimised.
function(rapt_build_quickly target)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    target_compile_options(${target} PRIVATE -O0)
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-Og>)
  endif()
endfunction()

# rapt_precompile(target headers...): parses external headers once instead of in every file. Files still include what
# they use. Not under ccache, which would recompile every file rather than trust a precompiled header.
function(rapt_precompile target)
  get_target_property(launcher ${target} CXX_COMPILER_LAUNCHER)
  if(NOT launcher MATCHES "ccache")
    target_precompile_headers(${target} PRIVATE ${ARGN})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      # In a precompiled header g++ 12 also warns about std::string's operator+ (char_traits.h).
      target_compile_options(${target} PRIVATE -Wno-stringop-overflow -Wno-stringop-overread)
    endif()
  endif()
endfunction()
