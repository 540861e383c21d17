# Registers one ctest test for each GoogleTest suite of ${executable}. ctest includes this file when it starts. With one
# process for each suite, all cores are busy, and ctest need not start thousands of processes.
if(NOT EXISTS "${executable}")
  add_test(rapt_tests_not_built "${executable}")
  return()
endif()
set(left_out "")
if(NOT "$ENV{RAPT_TEST_LEAVE_OUT}" STREQUAL "")  # GoogleTest's patterns of tests, such as Store.*:Reports.R04
  set(left_out "-$ENV{RAPT_TEST_LEAVE_OUT}")
endif()
execute_process(COMMAND "${executable}" --gtest_list_tests "--gtest_filter=*${left_out}"
  OUTPUT_VARIABLE listing RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  add_test(rapt_tests_cannot_list "${executable}" --gtest_list_tests)
  return()
endif()
string(REGEX MATCHALL "(^|\n)[A-Za-z_][A-Za-z0-9_/]*\\.(\n|  #)" suites "${listing}")
foreach(suite ${suites})
  string(REGEX REPLACE "[^A-Za-z0-9_/]" "" suite "${suite}")
  add_test("${suite}" "${executable}" "--gtest_filter=${suite}.*${left_out}" --gtest_brief=1)
  if(suite MATCHES "^(Isa/.*|.*Quantize.*|Storage/Seed|AttentionScalarEmulated|Reports|Shipped|CheckCases|StoreProcess)$|RungsOn|KnownBad")
    set_tests_properties("${suite}" PROPERTIES COST 10)  # long suites run first, so none of them runs alone at the end
  endif()
endforeach()
