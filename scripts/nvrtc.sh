#!/usr/bin/env bash
# Finds exactly the NVRTC version that made the ledger of kernels (src/kernels/resources.json). `nvrtc.sh` prints the
# folder of this NVRTC, or exits with 1 if it is not found. `nvrtc.sh install` puts NVIDIA's wheel into build/nvrtc.
# Called by bootstrap.sh, run_tests.sh, the Makefile and .ci/run. They need exactly this version, because registers and
# spills must match the ledger, and they differ between compiler versions. Users can use any NVRTC that jit/ supports.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^ *"nvrtc": "\([0-9.]*\)",$/\1/p' src/kernels/resources.json)
major=${version%%.*}
wheel=build/nvrtc/nvidia/cu$major/lib

# nvrtcVersion() returns only 13.0 for every 13.0.x. But the library contains the text that it writes into each cubin,
# and this text has all three numbers.
is_wanted() { [ -e "$1/libnvrtc.so.$major" ] && LC_ALL=C grep -qaF "V$version" "$1/libnvrtc.so.$major"; }

find_folder() {
  local folder
  for folder in "${RAPT_NVRTC:-}" "$wheel" /usr/local/cuda/lib64 /usr/local/cuda-*/lib64; do
    [ -f "$folder" ] && folder=$(dirname "$folder")
    if [ -n "$folder" ] && is_wanted "$folder"; then
      (cd "$folder" && pwd)
      return 0
    fi
  done
  return 1
}

case "${1:-}" in
  "")
    find_folder && exit 0
    echo "NVRTC $version is not in ${RAPT_NVRTC:+$RAPT_NVRTC, }$wheel or /usr/local/cuda*/lib64: scripts/nvrtc.sh install" >&2
    exit 1
    ;;
  install)
    find_folder >/dev/null 2>&1 && exit 0
    echo "Installing NVRTC $version (90 MB, NVIDIA's wheel nvidia-cuda-nvrtc) into build/nvrtc"
    rm -rf build/nvrtc
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --root-user-action ignore \
      --target build/nvrtc "nvidia-cuda-nvrtc==$version"
    is_wanted "$wheel" || { echo "nvidia-cuda-nvrtc==$version holds no NVRTC $version in $wheel" >&2; exit 1; }
    ;;
  *)
    echo "nvrtc.sh '$1': must be empty or install" >&2
    exit 2
    ;;
esac
