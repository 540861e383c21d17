#!/usr/bin/env bash
# Runs the tests of one preset and prints the counts at the end: run_tests.sh PRESET [words for ctest]. Called by `make
# test` and .ci/run. ctest only counts suites. So the script takes the number of test cases, and the number of reports,
# from the output of the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
tree=build
[ "$preset" = release ] || tree=build-$preset
log=$tree/Testing/Temporary/LastTest.log

# Without NVRTC, the tests that compile kernels fail and report it.
if nvrtc=$(scripts/nvrtc.sh); then export RAPT_NVRTC=$nvrtc; fi

rm -f "$log"
summary=$(mktemp)
trap 'rm -f "$summary"' EXIT
ctest --preset "$preset" "$@" | tee "$summary" | grep -vE '^ +Start '
status=${PIPESTATUS[0]}

# If the reports ran, prints their number.
grep -E '^reports: [0-9]+ run, [0-9]+ in tests/python, [0-9]+ need a GPU \([0-9]+ skipped here\)' "$log"
awk '/^\[  PASSED  \]/ {passed += $4} /^\[  FAILED  \] .*\([0-9]+ ms\)$/ {failed += 1} /^\[  SKIPPED \] [0-9]+ test/ {skipped += $4}
  END {printf "test cases: %d passed, %d failed, %d skipped\n", passed, failed, skipped}' "$log"
awk '/^GPU test cases: / {skipped += $4; run += $6} END {printf "GPU tests: %d skipped, %d run\n", skipped, run}' "$log"
grep -E '^[0-9]+% tests passed' "$summary"
exit "$status"
