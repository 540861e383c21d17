#!/usr/bin/env bash
# Runs the tests of one preset and ends with the counts: run_tests.sh PRESET [words for ctest].
# Called by `make test` and .ci/run. ctest counts suites; the cases in them, and the reports that still wait for a
# feature, are counted from what the tests printed.
set -uo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
tree=build
[ "$preset" = release ] || tree=build-$preset
log=$tree/Testing/Temporary/LastTest.log

# Where there is none, the tests that compile kernels fail and say so.
if nvrtc=$(scripts/nvrtc.sh); then export RAPT_NVRTC=$nvrtc; fi

rm -f "$log"
summary=$(mktemp)
trap 'rm -f "$summary"' EXIT
ctest --preset "$preset" "$@" | tee "$summary" | grep -vE '^ +Start '
status=${PIPESTATUS[0]}

# Where they ran, the reports: how many, and what each pending one waits for.
grep -E '^(reports: [0-9]+ run, [0-9]+ in tests/python, [0-9]+ need a GPU \([0-9]+ skipped here\), [0-9]+ pending|  [A-Z][0-9A-Za-z]* +waits for )' "$log"
awk '/^\[  PASSED  \]/ {passed += $4} /^\[  FAILED  \] .*\([0-9]+ ms\)$/ {failed += 1} /^\[  SKIPPED \] [0-9]+ test/ {skipped += $4}
  END {printf "test cases: %d passed, %d failed, %d skipped\n", passed, failed, skipped}' "$log"
awk '/^GPU test cases: / {skipped += $4; run += $6} END {printf "GPU tests: %d skipped, %d run\n", skipped, run}' "$log"
grep -E '^[0-9]+% tests passed' "$summary"
exit "$status"
