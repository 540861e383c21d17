#!/usr/bin/env bash
# Runs the tests of one preset and ends with the counts: run_tests.sh PRESET [words for ctest].
# Called by `make test` and .ci/run. Shows the cases that wait for a feature, and that no GPU test ran.
set -uo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
tree=build
[ "$preset" = release ] || tree=build-$preset

ctest --preset "$preset" --output-log "$tree/ctest.log" -V "$@" >/dev/null
status=$?
if [ $status -ne 0 ]; then
  ctest --preset "$preset" --rerun-failed "$@"
fi
grep -hoE '([0-9]+ run, [0-9]+ pending|pending: ).*' "$tree/ctest.log" | sort -u
exit $status
