# rapt_embed(target symbol base_dir files...): embeds text files in a target.
# Defines the function `const std::map<std::string_view, std::string_view>& symbol()`; symbol includes its namespaces.
# The map's keys are the files' paths relative to base_dir, its values are their texts. The source is written again if a
# file changes. Used by RaptLibrary and RaptLab.
function(rapt_embed target symbol base_dir)
  string(MAKE_C_IDENTIFIER "${symbol}" name)
  set(list "${PROJECT_BINARY_DIR}/generated/${name}.list.cmake")
  set(source "${PROJECT_BINARY_DIR}/generated/${name}.cpp")
  set(files ${ARGN})
  list(SORT files)
  set(names "")
  foreach(file ${files})
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${base_dir}" OUTPUT_VARIABLE relative)
    list(APPEND names "${relative}")
  endforeach()
  # If a file is added or removed, this list changes, and so the source is written again.
  file(CONFIGURE OUTPUT "${list}" @ONLY CONTENT
    "set(symbol [==[@symbol@]==])\nset(base_dir [==[@base_dir@]==])\nset(names [==[@names@]==])\n")
  set(script "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/embed_files.cmake")
  add_custom_command(OUTPUT "${source}" DEPENDS ${files} "${list}" "${script}"
    COMMAND "${CMAKE_COMMAND}" "-DLIST=${list}" "-DOUTPUT=${source}" -P "${script}"
    COMMENT "Embedding the texts of ${symbol}" VERBATIM)
  target_sources(${target} PRIVATE "${source}")
endfunction()
