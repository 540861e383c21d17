#!/usr/bin/env bash
# Compiles the GPU kernels of check/cases/shipped.txt with exactly the NVRTC of the ledger: kernels.sh TREE MODE. Modes:
# pack writes TREE/rapt.pack, the default pack (make pack). check does the same, and compares the kernels with the
# ledger for every architecture (CI). ledger rewrites src/kernels/resources.json (make ledger); if RAPT_NVRTC is set, it
# uses that NVRTC.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$1
packed=sm_80,sm_89,sm_90a
others=sm_120
ledger=src/kernels/resources.json
bytes_allowed=20000000

compile() { "$tree/rapt" pack --cases shipped "$@"; }

check_size() {
  local bytes
  bytes=$(stat -c %s "$tree/rapt.pack") || return 1
  [ "$bytes" -le $bytes_allowed ] || {
    echo "$tree/rapt.pack is $bytes bytes: at most $bytes_allowed are allowed"
    return 1
  }
}

case "${2:-}" in
  ledger)
    [ -n "${RAPT_NVRTC:-}" ] || RAPT_NVRTC=$(scripts/nvrtc.sh)
    export RAPT_NVRTC
    compile --arch $packed,$others --ledger $ledger --update
    ;;
  pack | check)
    RAPT_NVRTC=$(scripts/nvrtc.sh)
    export RAPT_NVRTC
    failed=0
    rm -f "$tree/rapt.pack"
    if [ "$2" = pack ]; then
      compile --arch $packed -o "$tree/rapt.pack"
    else
      compile --arch $packed -o "$tree/rapt.pack" --ledger $ledger || failed=1
      compile --arch $others --ledger $ledger || failed=1
    fi
    check_size || failed=1
    exit $failed
    ;;
  *)
    echo "kernels.sh TREE '${2:-}': must be pack, check or ledger" >&2
    exit 2
    ;;
esac
