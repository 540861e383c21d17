# Builds rapt._core, the compiled module of the Python package. Included by CMakeLists.txt if RAPT_BUILD_PYTHON is on,
# as in `pip install .` (pyproject.toml). It uses only the stable ABI of CPython 3.10, so one module is sufficient for
# all later versions.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

file(GLOB python_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/src/*.cpp")
add_library(rapt_python MODULE ${python_sources})
rapt_defaults(rapt_python)
target_include_directories(rapt_python SYSTEM PRIVATE ${Python_INCLUDE_DIRS})
target_link_libraries(rapt_python PRIVATE rapt_core)  # problem_line.cpp needs the parser of problem lines
# The module exports only PyInit__core, so it does not mix with another copy of rapt in the same process (for example in
# an application). The C++ runtime is linked statically, so the module also loads on systems with an older C++ runtime.
target_link_options(rapt_python PRIVATE LINKER:--exclude-libs,ALL LINKER:--gc-sections -static-libstdc++)
# The module is put beside a copy of the package's Python files, so PYTHONPATH=<tree>/python runs the built package.
set_target_properties(rapt_python PROPERTIES PREFIX "" OUTPUT_NAME _core SUFFIX .abi3.so
  LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/python/rapt")
add_custom_command(TARGET rapt_python POST_BUILD
  COMMAND "${CMAKE_COMMAND}" -E copy_directory "${PROJECT_SOURCE_DIR}/python/rapt" "${PROJECT_BINARY_DIR}/python/rapt"
  COMMAND "${CMAKE_COMMAND}" -E env "PYTHONPATH=${PROJECT_BINARY_DIR}/python"
    "${Python_EXECUTABLE}" -B "${PROJECT_SOURCE_DIR}/python/stub/stub.py" "${PROJECT_BINARY_DIR}/python/rapt/__init__.pyi"
  VERBATIM)
# If a Python file changes, the module is linked again, and the command above copies the files again.
file(GLOB python_files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/rapt/*.py"
  "${PROJECT_SOURCE_DIR}/python/rapt/compat/*.py" "${PROJECT_SOURCE_DIR}/python/stub/*")
set_target_properties(rapt_python PROPERTIES LINK_DEPENDS "${python_files}")

install(TARGETS rapt_python DESTINATION rapt COMPONENT python)
install(FILES "${PROJECT_BINARY_DIR}/python/rapt/__init__.pyi" DESTINATION rapt COMPONENT python)
# A pack of compiled kernels for the package: -DRAPT_PACK=build/rapt.pack (make pack). With it, the first call of a
# common problem compiles nothing.
set(RAPT_PACK "" CACHE FILEPATH "Pack of GPU kernels that the Python package carries; empty: none")
if(RAPT_PACK)
  install(FILES "${RAPT_PACK}" DESTINATION rapt RENAME default.pack COMPONENT python)
endif()
