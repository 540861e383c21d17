#!/usr/bin/env bash
# Copies what a bare machine needs to run rapt: kit.sh BUILD_TREE TARGET. Called by `make kit`.
# The program links all but libc and libm statically; the folder stays under 64 MiB.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$1 target=$2
rm -rf "$target"
mkdir -p "$target/check" "$target/examples"
cp "$tree/rapt" "$target/"
cp -P "$tree"/librapt.so* "$target/"
cp -r check/cases "$target/check/"
cp -r examples/data "$target/examples/"
kib=$(du -sk "$target" | cut -f1)
if [ "$kib" -gt 65536 ]; then
  echo "kit.sh: $target is $kib KiB: must stay under 65536 (64 MiB)" >&2
  exit 1
fi
echo "$target: $kib KiB; there: ./rapt run examples/data/minilm-layer0.safetensors"
