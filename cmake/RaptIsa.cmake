# Selects the instruction sets of the CPU backend, and the compiler flags for the translation unit of each set. Included
# by RaptLibrary.cmake. It adds sources, flags and the definition RAPT_CPU_ISAS to rapt_objects. The flags are the
# minimum for which Highway selects the wanted static target (its hwy/detect_targets.h, 1.0.3 to 1.2.0). AVX2 needs
# BMI2, FMA, F16C and, through SSE4, PCLMUL and AES (rapt does not use these two). AVX3 also needs AVX-512 F, BW, DQ and
# VL, and its code uses CD. Before src/device/device.cpp selects a set, it must check that the CPU has each of these
# features.
include(CheckCXXCompilerFlag)

set(avx2_flags -mavx2 -mfma -mf16c -mbmi -mbmi2 -maes -mpclmul)
set(avx512_flags ${avx2_flags} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd -mprefer-vector-width=512)
set(avx512_bf16_flags ${avx512_flags} -mavx512bf16)
set(neon_flags -march=armv8-a+crypto)  # Highway's NEON target needs crypto, but rapt does not use crypto
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 warns about its own avx512fintrin.h (_mm512_undefined_ps; fixed in 13).
  list(APPEND avx512_flags -Wno-maybe-uninitialized)
  list(APPEND avx512_bf16_flags -Wno-maybe-uninitialized)
endif()

# If the compiler supports the flags of instruction set `name`: adds src/cpu/isa_<name>.cpp to the library with these
# flags, and adds the name to rapt_isas.
function(rapt_isa name)
  set(source "${PROJECT_SOURCE_DIR}/src/cpu/isa_${name}.cpp")
  string(TOUPPER ${name} upper)
  string(JOIN " " flags ${${name}_flags})
  set(CMAKE_REQUIRED_QUIET ON)
  if(flags)
    check_cxx_compiler_flag("${flags}" RAPT_COMPILER_HAS_${upper})
  else()
    set(RAPT_COMPILER_HAS_${upper} ON)
  endif()
  if(RAPT_COMPILER_HAS_${upper} AND EXISTS "${source}")
    # These files are always optimised, also in debug trees. Otherwise inline functions would be compiled out of line
    # with the flags of this instruction set, and the linker could use these copies in code for older machines
    # (scripts/check_isa_symbols.sh). With a sanitizer the level is -O2, with which clang takes a quarter less time.
    # The scalar code is for machines without vectors, and -O3 makes it 60 KB larger.
    set(level -O3)
    if(CMAKE_CXX_FLAGS MATCHES "-fsanitize" OR name STREQUAL scalar)
      set(level -O2)
    endif()
    set_source_files_properties("${source}" TARGET_DIRECTORY rapt_objects PROPERTIES SKIP_PRECOMPILE_HEADERS ON
      COMPILE_OPTIONS "${level};-fno-math-errno;${${name}_flags}")
    target_sources(rapt_objects PRIVATE "${source}")
    set(rapt_isas ${rapt_isas} ${name} PARENT_SCOPE)
  endif()
endfunction()

set(rapt_isas "")
rapt_isa(scalar)
if(RAPT_HIGHWAY)
  find_path(RAPT_HIGHWAY_INCLUDE_DIR hwy/highway.h DOC "Folder that holds hwy/highway.h (Debian: libhwy-dev)")
endif()
if(RAPT_HIGHWAY AND RAPT_HIGHWAY_INCLUDE_DIR)
  target_include_directories(rapt_objects SYSTEM PRIVATE "${RAPT_HIGHWAY_INCLUDE_DIR}")
  target_compile_definitions(rapt_objects PRIVATE RAPT_HAVE_HIGHWAY=1)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    rapt_isa(avx2)
    rapt_isa(avx512)
    rapt_isa(avx512_bf16)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    rapt_isa(neon)
  endif()
elseif(RAPT_HIGHWAY)
  message(WARNING "rapt: hwy/highway.h not found (Debian and Ubuntu: libhwy-dev), so the CPU backend has only the "
    "scalar instruction set and is many times slower. -DRAPT_HIGHWAY=OFF asks for that without this warning.")
endif()
list(TRANSFORM rapt_isas REPLACE "(.+)" "ISA(\\1)" OUTPUT_VARIABLE isa_rows)
string(REPLACE ";" " " isa_rows "${isa_rows}")
target_compile_definitions(rapt_objects PRIVATE "RAPT_CPU_ISAS=${isa_rows}")
string(REPLACE ";" ", " isa_list "${rapt_isas}")
message(STATUS "rapt: CPU instruction sets: ${isa_list}")
