#!/usr/bin/env bash
# Checks that code of one instruction set cannot be linked into another's: check_isa_symbols.sh BUILD_TREE. Called by
# .ci/run on the release tree. An inline function that is compiled out of line is a weak symbol. Of equal weak symbols
# the linker keeps the first, so an AVX-512 copy of, for example, std::vector's code would crash on an older machine.
# Therefore all functions in isa_<name>.cpp except its entry must have internal linkage.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
count=0
for object in "$1"/CMakeFiles/rapt_objects.dir/src/cpu/isa_*.o; do
  isa=$(basename "$object" | sed 's/^isa_\(.*\)\.cpp\.o$/\1/')
  [ "$isa" = scalar ] && continue # compiled like all other code
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
