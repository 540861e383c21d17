#!/usr/bin/env bash
# Installs missing packages for a make target: bootstrap.sh run|test|ci (test includes run, ci includes both). Called by
# the Makefile and .ci/run. It installs on Debian 12 and Ubuntu 24.04, as root or with sudo. On other systems it only
# prints the names of the packages. A second run only checks files, and does not start a package manager.
set -euo pipefail
cd "$(dirname "$0")/.."

has_command() { command -v "$1" >/dev/null; }
has_header() { [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ]; }
has_file() { compgen -G "$1" >/dev/null; }
has_pip() { python3 -m pip --version >/dev/null 2>&1; }
has_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }
has_python_headers() { python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; }
has_nvrtc() { scripts/nvrtc.sh >/dev/null 2>&1; }

missing=()
need() {  # need PACKAGE PROBE ARGUMENT
  "$2" "$3" || missing+=("$1")
}

need_run() {
  need g++ has_command c++
  need cmake has_command cmake
  need ninja-build has_command ninja
  need libhwy-dev has_header hwy/highway.h
  need libfmt-dev has_header fmt/format.h
  need nlohmann-json3-dev has_header nlohmann/json.hpp
  need libcli11-dev has_header CLI/CLI.hpp
}
need_test() {
  need_run
  need libgtest-dev has_header gtest/gtest.h
  has_nvrtc || need python3-pip has_pip ""  # tests compile GPU kernels, and scripts/nvrtc.sh install needs pip
}
need_ci() {
  need_test
  need git has_command git
  need python3 has_command python3
  need python3-venv has_venv ""
  need python3-dev has_python_headers ""
  need pkg-config has_command pkg-config
  need ccache has_command ccache
  need clang has_command clang++
  need clang-format has_command clang-format
  need clang-tidy has_command clang-tidy
  need libclang-rt-dev has_file '/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a'
}

case "${1:-}" in
  run | test | ci) "need_$1" ;;
  *)
    echo "bootstrap.sh '${1:-}': expected run, test or ci" >&2
    exit 2
    ;;
esac

# Installs NVRTC, after the packages. Without a network, `make test` continues, and the tests that compile kernels fail.
install_nvrtc() {
  [ "$1" = run ] || has_nvrtc || scripts/nvrtc.sh install || {
    echo "NVRTC could not be installed; its tests will fail. If you have it, set RAPT_NVRTC=FOLDER" >&2
    [ "$1" = test ] || exit 3
  }
}
if [ ${#missing[@]} -eq 0 ]; then
  install_nvrtc "$1"
  exit 0
fi

if ! has_command apt-get; then
  echo "Missing: ${missing[*]} (Debian's names); this machine has no apt-get, so please install them and run again." >&2
  exit 3
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! has_command sudo; then
    echo "Missing: ${missing[*]}; as root run: apt-get install ${missing[*]}" >&2
    exit 3
  fi
  as_root=(sudo)
fi

install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -q "${missing[@]}"
}
echo "Installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The package lists can be missing or old. They are updated only if the first attempt to install fails.
install >"$log" 2>&1 || { "${as_root[@]}" apt-get update -q >"$log" 2>&1 && install >"$log" 2>&1; } || {
  tail -n 20 "$log" >&2
  echo "apt-get could not install ${missing[*]}: see its last messages above." >&2
  exit 3
}
install_nvrtc "$1"
