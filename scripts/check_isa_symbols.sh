#!/usr/bin/env bash
# Checks that no code of one instruction set can be linked into another's: check_isa_symbols.sh BUILD_TREE.
# Called by .ci/run on the release tree. An inline function that the compiler leaves out of line is a weak symbol; of
# equal ones the linker keeps whichever comes first, so an AVX-512 copy of, say, std::vector's code would crash on a
# lesser machine. Hence everything in an isa_<name>.cpp but its entry has internal linkage.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
count=0
for object in "$1"/CMakeFiles/rapt_objects.dir/src/cpu/isa_*.o; do
  isa=$(basename "$object" | sed 's/^isa_\(.*\)\.cpp\.o$/\1/')
  [ "$isa" = scalar ] && continue # compiled like everything else
  count=$((count + 1))
  shared=$(nm -C --defined-only "$object" | awk '$2 ~ /^[WVu]$/' || true)
  if [ -n "$shared" ]; then
    echo "$object: weak symbols, which the linker may hand to other code:"
    echo "$shared"
    failed=1
  fi
done
[ $count -gt 0 ] || { echo "$1: no instruction set beyond scalar was built"; exit 1; }
echo "$count instruction sets looked at"
exit $failed
