# Builds the library: one set of objects from src/, in a shared and a static library. Included by CMakeLists.txt. The
# targets are rapt::rapt (librapt.so), rapt::rapt_static (librapt.a) and rapt_core. rapt_core adds src/ to the include
# path. Only check, lab and tests (and the Python module) use it, because only they may use internals.
file(GLOB_RECURSE rapt_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/*.cpp")
list(FILTER rapt_sources EXCLUDE REGEX "/src/cpu/isa_[a-z0-9_]+\\.cpp$")

# The list of kernel families. src/kernels/registry.cpp includes it.
file(GLOB families CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/kernels/*/attention_*.cpp")
list(TRANSFORM families REPLACE ".*/(attention_[a-z0-9_]+)\\.cpp$" "RAPT_FAMILY(\\1)\n")
list(JOIN families "" families)
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/kernel_families.inc" CONTENT "${families}")

add_library(rapt_objects OBJECT ${rapt_sources})
rapt_defaults(rapt_objects)
# Can be ccache, for builds that compile the library several times with the same options (.ci/run compiles it for the
# program and for the wheel).
set(RAPT_LIBRARY_LAUNCHER "" CACHE STRING "Compiler launcher of the library's files alone, such as ccache")
if(RAPT_LIBRARY_LAUNCHER)
  set_target_properties(rapt_objects PROPERTIES CXX_COMPILER_LAUNCHER "${RAPT_LIBRARY_LAUNCHER}")
endif()
target_include_directories(rapt_objects PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src"
  "${PROJECT_BINARY_DIR}/generated")
# <filesystem> is not in this list: it declares std::quoted, which clang would then prefer to the project's own
# function.
rapt_precompile(rapt_objects <algorithm> <array> <atomic> <cmath> <cstdint> <cstring> <functional> <map> <memory>
  <mutex> <optional> <span> <string> <string_view> <vector>)
# The code in these files does not run in a repeated call: it parses, prints, finds NVRTC, and fetches compiled kernels.
# With -O1 they take half of the build time.
file(GLOB cold_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/jit/*.cpp")
list(FILTER cold_sources EXCLUDE REGEX "/sha256\\.cpp$")  # must be fast, because it reads whole packs
foreach(source base/files problem/hint problem/parse problem/value)
  list(APPEND cold_sources "${PROJECT_SOURCE_DIR}/src/${source}.cpp")
endforeach()
if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  set_source_files_properties(${cold_sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON
    COMPILE_OPTIONS "$<$<OR:$<CONFIG:Release>,$<CONFIG:>>:-O1>")
endif()
include(RaptIsa)
include(RaptEmbed)
# Device sources, and headers that host and device share: all folders of kernels/, without the headers for host code.
file(GLOB_RECURSE kernel_files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/kernels/*.cuh"
  "${PROJECT_SOURCE_DIR}/src/kernels/*.h")
list(FILTER kernel_files EXCLUDE REGEX "/kernels/[^/]+\\.h$|_gpu\\.h$")
rapt_embed(rapt_objects rapt::jit::embedded_files "${PROJECT_SOURCE_DIR}/src/kernels" ${kernel_files})

add_library(rapt_shared SHARED $<TARGET_OBJECTS:rapt_objects>)
add_library(rapt::rapt ALIAS rapt_shared)
set_target_properties(rapt_shared PROPERTIES OUTPUT_NAME rapt EXPORT_NAME rapt LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  LINK_DEPENDS "${PROJECT_SOURCE_DIR}/src/api/rapt.map")
target_link_options(rapt_shared PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/src/api/rapt.map")
# The names of internal functions are a tenth of the library. A release does not need them.
target_link_options(rapt_shared PRIVATE $<$<CONFIG:Release>:LINKER:--discard-all>)
if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")  # with clang, the program and not the library has the sanitizer's symbols
  target_link_options(rapt_shared PRIVATE LINKER:-z,defs)
endif()
target_link_libraries(rapt_shared PRIVATE Threads::Threads ${CMAKE_DL_LIBS})

add_library(rapt_static STATIC $<TARGET_OBJECTS:rapt_objects>)
add_library(rapt::rapt_static ALIAS rapt_static)
set_target_properties(rapt_static PROPERTIES OUTPUT_NAME rapt LINKER_LANGUAGE CXX)
target_compile_definitions(rapt_static INTERFACE RAPT_STATIC)
target_link_libraries(rapt_static PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
# A project without C++ links with the C compiler, which does not add the C++ runtime.
target_link_libraries(rapt_static INTERFACE "$<$<LINK_LANGUAGE:C>:stdc++;m>")

foreach(library rapt_shared rapt_static)
  set_target_properties(${library} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}"
    ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
  target_compile_features(${library} INTERFACE cxx_std_20)
  target_include_directories(${library} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()

add_library(rapt_core INTERFACE)
target_link_libraries(rapt_core INTERFACE rapt_static)
target_include_directories(rapt_core INTERFACE "${PROJECT_SOURCE_DIR}/src")
