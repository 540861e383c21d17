#!/usr/bin/env bash
# Runs the GPU tests on a machine with a GPU, from a kit (scripts/kit.sh) or a build tree: gpu_suite.sh MODE...
#   tests        all tests for one GPU (words after -- are passed to rapt_gpu_tests)
#   two-devices  tests that need two GPUs; fails if there is only one
#   sanitizer    compute-sanitizer's four tools on the smoke suite
# The first line of output has card, driver and NVRTC. Compiled kernels go to ./gpu-cache unless RAPT_CACHE is set.
set -uo pipefail
cd "$(dirname "$0")/.."
program=./rapt_gpu_tests
[ -x "$program" ] || program=build/rapt_gpu_tests
[ -x "$program" ] || { echo "gpu_suite.sh: rapt_gpu_tests not found here or in build/" >&2; exit 3; }
export RAPT_CACHE=${RAPT_CACHE:-$PWD/gpu-cache}
mkdir -p "$RAPT_CACHE" && chmod 700 "$RAPT_CACHE"
modes=() words=()
while [ $# -gt 0 ]; do
  [ "$1" != -- ] || { shift; words=("$@"); break; }
  modes+=("$1")
  shift
done
[ ${#modes[@]} -gt 0 ] || { sed -n '2,6p' "$0" >&2; exit 2; }

about=$("$program" --about) || { echo "$about" >&2; exit 3; }
kernel_driver=$(sed -n 's/.*Kernel Module[^0-9]*\([0-9.]*\).*/\1/p' /proc/driver/nvidia/version 2>/dev/null | head -n 1)
echo "$about, driver ${kernel_driver:-of unknown version}"

find_sanitizer() {
  command -v compute-sanitizer && return
  ls /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer 2>/dev/null | head -n 1
}

sanitizer() {
  local tool found status=0 began log
  found=$(find_sanitizer)
  [ -n "$found" ] || { echo "sanitizer: compute-sanitizer not found (PATH, /usr/local/cuda*)" >&2; return 3; }
  "$program" --gtest_filter='Smoke*' >/dev/null 2>&1  # fills the kernel cache, so no compiler runs under the tools
  log=$(mktemp)
  for tool in memcheck racecheck initcheck synccheck; do
    began=$SECONDS
    # RAPT_GPU_TEST_SECONDS=0 switches the watchdog off. The watchdog would run the tests in child processes, but the
    # tools watch only the process that they start.
    if RAPT_GPU_TEST_SECONDS=0 timeout 300 "$found" --tool "$tool" --error-exitcode 1 "$program" --gtest_filter='Smoke*' >"$log" 2>&1; then
      echo "$tool: clean, $((SECONDS - began)) s ($(grep -E '^GPU test cases' "$log" | cut -d'(' -f1))"
    else
      status=1
      echo "$tool: FAILED, $((SECONDS - began)) s"
      tail -n 60 "$log"
    fi
  done
  rm -f "$log"
  return $status
}

status=0
for mode in "${modes[@]}"; do
  case $mode in
    tests) "$program" ${words[@]+"${words[@]}"} || status=1 ;;
    two-devices)
      out=$("$program" --gtest_filter='GpuTwoDevices*') || status=1
      echo "$out"
      grep -q '^GPU test cases: 0 skipped, [1-9]' <<<"$out" || { echo "two-devices: a test was skipped"; status=1; }
      ;;
    sanitizer) sanitizer || status=1 ;;
    *) echo "gpu_suite.sh: mode $mode: must be tests, two-devices or sanitizer" >&2; exit 2 ;;
  esac
done
exit $status
