#!/usr/bin/env bash
# Checks that the linker cannot use code of one instruction set in the code of another: check_isa_symbols.sh BUILD_TREE.
# Called by .ci/run on the release tree. An inline function that is compiled out of line is a weak symbol. If several
# files have the same weak symbol, the linker keeps the first. So an AVX-512 copy of, for example, code of std::vector
# could run on an older machine and crash. Therefore all functions in isa_<name>.cpp except its entry must have internal
# linkage.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
count=0
for object in "$1"/CMakeFiles/rapt_objects.dir/src/cpu/isa_*.o; do
  isa=$(basename "$object" | sed 's/^isa_\(.*\)\.cpp\.o$/\1/')
  [ "$isa" = scalar ] && continue # it is compiled with the flags of all other code
  count=$((count + 1))
  shared=$(nm -C --defined-only "$object" | awk '$2 ~ /^[WVu]$/' || true)
  if [ -n "$shared" ]; then
    echo "$object: weak symbols, which the linker may use in other code:"
    echo "$shared"
    failed=1
  fi
done
[ $count -gt 0 ] || { echo "$1: no instruction set except scalar was built"; exit 1; }
echo "$count instruction sets checked"
exit $failed
