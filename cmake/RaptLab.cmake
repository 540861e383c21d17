# Builds check (the reference) and lab (the `rapt` program). Included by CMakeLists.txt if the program or tests are
# built. Uses the headers of fmt, nlohmann-json and CLI11 from the system. If one of them is missing, prints a message
# and leaves lab out.
find_package(fmt CONFIG QUIET)
find_package(nlohmann_json CONFIG QUIET)
find_package(CLI11 CONFIG QUIET)
find_package(Git QUIET)

file(GLOB check_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/check/*.cpp")
if(check_sources)
  add_library(rapt_check STATIC ${check_sources})
  rapt_defaults(rapt_check)
  rapt_precompile(rapt_check <algorithm> <array> <cmath> <cstdint> <cstring> <functional> <map> <memory> <optional>
    <span> <string> <string_view> <vector>)
  if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")  # these files have no loops over elements
    set_source_files_properties(${PROJECT_SOURCE_DIR}/check/cases.cpp ${PROJECT_SOURCE_DIR}/check/check.cpp
      ${PROJECT_SOURCE_DIR}/check/library.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON
      COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
  endif()
  target_link_libraries(rapt_check PUBLIC rapt_core)
else()
  add_library(rapt_check INTERFACE)
  target_link_libraries(rapt_check INTERFACE rapt_core)
endif()
target_include_directories(rapt_check INTERFACE "${PROJECT_SOURCE_DIR}")

# rapt_build_info.h has the commit, the dirty flag, the compiler and its flags. Every build checks it, and writes it
# only if it has changed.
string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
string(STRIP "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}}" build_flags)
add_custom_target(rapt_build_info BYPRODUCTS "${PROJECT_BINARY_DIR}/generated/rapt_build_info.h"
  COMMAND "${CMAKE_COMMAND}" "-DSOURCE_DIR=${PROJECT_SOURCE_DIR}" "-DGIT=${GIT_EXECUTABLE}"
    "-DTEMPLATE=${PROJECT_SOURCE_DIR}/cmake/rapt_build_info.h.in"
    "-DOUTPUT=${PROJECT_BINARY_DIR}/generated/rapt_build_info.h"
    "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" "-DFLAGS=${build_flags}"
    -P "${PROJECT_SOURCE_DIR}/cmake/build_info.cmake"
  COMMENT "Looking at the commit" VERBATIM)

set(missing "")
foreach(package fmt nlohmann_json CLI11)
  if(NOT ${package}_FOUND)
    list(APPEND missing ${package})
  endif()
endforeach()
file(GLOB lab_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/lab/*.cpp")
list(FILTER lab_sources EXCLUDE REGEX "/lab/main\\.cpp$")
set(rapt_has_lab OFF)
if(missing)
  message(WARNING "rapt: the program and the tests that need it are left out: ${missing} not found "
    "(Debian and Ubuntu: libfmt-dev nlohmann-json3-dev libcli11-dev)")
elseif(lab_sources)
  set(rapt_has_lab ON)
  add_library(rapt_lab STATIC ${lab_sources})
  rapt_defaults(rapt_lab)
  rapt_build_quickly(rapt_lab)
  rapt_precompile(rapt_lab <fmt/format.h> "${PROJECT_SOURCE_DIR}/lab/json.h" <algorithm> <filesystem> <functional> <map>
    <string> <vector>)
  set_source_files_properties(lab/fmt.cpp lab/json.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  if(EXISTS "${PROJECT_SOURCE_DIR}/lab/roof.cpp")  # it has the loops that measure this machine's peak
    set_source_files_properties(lab/roof.cpp PROPERTIES COMPILE_OPTIONS "-O3" SKIP_PRECOMPILE_HEADERS ON)
  endif()
  add_dependencies(rapt_lab rapt_build_info)
  target_include_directories(rapt_lab PUBLIC "${PROJECT_BINARY_DIR}/generated")
  rapt_embed(rapt_lab rapt::lab::embedded_ledger "${PROJECT_SOURCE_DIR}/src/kernels"
    "${PROJECT_SOURCE_DIR}/src/kernels/resources.json")
  # Files that are embedded, because an installed program needs them: case sets, and the pages for `rapt help`.
  file(GLOB case_sets CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/check/cases/*.txt")
  rapt_embed(rapt_lab rapt::lab::embedded_cases "${PROJECT_SOURCE_DIR}/check/cases" ${case_sets})
  set(help_pages problem-line semantics lab fp8 packs tuning ladder adding-a-variant)
  list(TRANSFORM help_pages PREPEND "${PROJECT_SOURCE_DIR}/docs/")
  list(TRANSFORM help_pages APPEND ".md")
  rapt_embed(rapt_lab rapt::lab::embedded_pages "${PROJECT_SOURCE_DIR}/docs" ${help_pages})
  file(GLOB_RECURSE lab_device_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/lab/*.cuh")
  list(FILTER lab_device_sources EXCLUDE REGEX "/lab/emulation/")
  rapt_embed(rapt_lab rapt::lab::device_sources "${PROJECT_SOURCE_DIR}/lab" ${lab_device_sources})
  # Files that are embedded, because lab/emulate.cpp needs them to compile a variant for the CPU.
  file(GLOB_RECURSE emulation_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/lab/emulation/*.h"
    "${PROJECT_SOURCE_DIR}/lab/emulation/*.cuh")
  rapt_embed(rapt_lab rapt::lab::emulation_sources "${PROJECT_SOURCE_DIR}/lab/emulation" ${emulation_sources})
  target_link_libraries(rapt_lab PUBLIC rapt_check nlohmann_json::nlohmann_json CLI11::CLI11)
  if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)  # lab/fmt.cpp compiles fmt 9 once
    target_include_directories(rapt_lab SYSTEM PUBLIC
      $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
  else()
    target_link_libraries(rapt_lab PUBLIC fmt::fmt-header-only)
  endif()
endif()

if(RAPT_BUILD_LAB AND rapt_has_lab AND EXISTS "${PROJECT_SOURCE_DIR}/lab/main.cpp")
  add_executable(rapt_program lab/main.cpp)
  rapt_defaults(rapt_program)
  set_target_properties(rapt_program PROPERTIES OUTPUT_NAME rapt RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
  target_link_libraries(rapt_program PRIVATE rapt_lab)
  if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")  # for use on other machines, all but libc and libm is linked statically
    target_link_options(rapt_program PRIVATE -static-libstdc++ -static-libgcc)
  endif()
endif()
