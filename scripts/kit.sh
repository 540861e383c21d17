#!/usr/bin/env bash
# Copies all files that a bare machine needs to run rapt and its GPU tests into a folder: kit.sh BUILD_TREE TARGET.
# Called by `make kit`. The programs link everything except libc and libm statically. The folder stays under 64 MiB. It
# contains rapt_tests if there is enough room, and the kernel packs (BUILD_TREE/*.pack) and benchmark scripts that
# exist.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$1 target=$2
limit_kib=65536
size_kib() { du -sck "$@" | tail -n 1 | cut -f1; }

rm -rf "$target"
mkdir -p "$target/check" "$target/examples" "$target/scripts" "$target/bench" "$target/docs"
install -s "$tree/rapt" "$target/"
cp -P "$tree"/librapt.so* "$target/"
cp -r check/cases "$target/check/"
cp -r examples/data "$target/examples/"
cp scripts/gpu_suite.sh "$target/scripts/"
cp bench/*.py "$target/bench/"
cp docs/results-schema.json "$target/docs/"  # the scripts of bench/ validate their rows with it
cp -r examples/python "$target/examples/"
# The tree has this folder if it was built with -DRAPT_BUILD_PYTHON=ON. Usage: PYTHONPATH=python python3 -m pytest
# tests/python
if [ -d "$tree/python" ]; then
  mkdir -p "$target/tests"
  cp -r "$tree/python" "$target/"
  cp -r tests/python "$target/tests/"
  find "$target" -name __pycache__ -prune -exec rm -r {} +
fi
[ ! -e "$tree/rapt_gpu_tests" ] || install -s "$tree/rapt_gpu_tests" "$target/"
for pack in "$tree"/*.pack; do [ ! -e "$pack" ] || cp "$pack" "$target/"; done

note=""
if [ -e "$tree/rapt_tests" ]; then
  install -s "$tree/rapt_tests" "$target/"
  if [ "$(size_kib "$target")" -gt "$limit_kib" ]; then
    rm "$target/rapt_tests"
    note=" (without rapt_tests, which did not fit)"
  fi
fi
kib=$(size_kib "$target")
if [ "$kib" -gt "$limit_kib" ]; then
  echo "kit.sh: $target is $kib KiB: must stay under $limit_kib (64 MiB)" >&2
  exit 1
fi
echo "$target: $kib KiB$note; there: ./rapt run examples/data/minilm-layer0.safetensors, scripts/gpu_suite.sh tests"
