#!/usr/bin/env bash
# Checks the exports and dependencies of librapt.so: check_library.sh BUILD_TREE. Called by .ci/run on the release tree.
# The library must export exactly the functions of include/rapt/rapt.h, need only libc and the C++ runtime, run with
# glibc 2.35 (Ubuntu 22.04), and have at most 3 MiB.
set -euo pipefail
cd "$(dirname "$0")/.."
library=$1/librapt.so
newest_allowed=2.35
bytes_allowed=$((3 * 1024 * 1024))
failed=0

declared=$(grep -oE '\brapt_[a-z_]+\(' include/rapt/rapt.h | tr -d '(' | sort -u)
if ! diff <(nm -D --defined-only "$library" | awk '{print $3}' | sort) <(echo "$declared"); then
  echo "$library: exported symbols (<) differ from the functions of include/rapt/rapt.h (>)"
  failed=1
fi

soname=$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
if [ "$soname" != librapt.so.0 ]; then
  echo "$library: SONAME is '$soname', must be librapt.so.0"
  failed=1
fi

others=$(readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' |
  grep -vE '^(libc\.so\.6|libm\.so\.6|libstdc\+\+\.so\.6|libgcc_s\.so\.1|ld-linux-.*)$' || true)
if [ -n "$others" ]; then
  echo "$library needs $others: only libc, libm, libstdc++ and libgcc_s are allowed"
  failed=1
fi

newest=$(objdump -T "$library" | grep -oE 'GLIBC_[0-9.]+' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
if [ "$(printf '%s\n' "$newest" $newest_allowed | sort -V | tail -n 1)" != $newest_allowed ]; then
  echo "$library needs GLIBC_$newest: at most $newest_allowed is allowed"
  failed=1
fi

bytes=$(stat -L -c %s "$library")
if [ "$bytes" -gt $bytes_allowed ]; then
  echo "$library is $bytes bytes: at most $bytes_allowed (3 MiB) are allowed"
  failed=1
fi

[ $failed -eq 0 ] && echo "$bytes bytes, $(wc -l <<<"$declared") symbols exported, glibc $newest or newer needed"
exit $failed
