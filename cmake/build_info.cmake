# Writes rapt_build_info.h. In every build, the target rapt_build_info (RaptLab.cmake) runs it with cmake -P. Its inputs
# are SOURCE_DIR, GIT, TEMPLATE, OUTPUT, COMPILER and FLAGS. Outside a git tree of rapt the commit is "unknown".
set(COMMIT "unknown")
set(DIRTY "false")
if(GIT)
  execute_process(COMMAND "${GIT}" -C "${SOURCE_DIR}" rev-parse --show-toplevel OUTPUT_VARIABLE top
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH "${SOURCE_DIR}" source)
  if(top STREQUAL source)
    execute_process(COMMAND "${GIT}" -C "${SOURCE_DIR}" rev-parse HEAD OUTPUT_VARIABLE COMMIT RESULT_VARIABLE failed
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND "${GIT}" -C "${SOURCE_DIR}" --no-optional-locks status --porcelain OUTPUT_VARIABLE changes
      ERROR_QUIET)
    if(failed)
      set(COMMIT "unknown")
    elseif(changes)
      set(DIRTY "true")
    endif()
  endif()
endif()
configure_file("${TEMPLATE}" "${OUTPUT}" @ONLY)
