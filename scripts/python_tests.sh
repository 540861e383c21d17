#!/usr/bin/env bash
# Builds the wheel like `pip install .`, installs it into a new virtual environment with NumPy and pytest, and runs
# tests/python there: python_tests.sh [BUILD_FOLDER]. Called by .ci/run. First it runs the tests that need only NumPy,
# with no other framework installed. Then it runs all tests with PyTorch and transformers (scripts/pytorch.sh), which
# are required. Tests of JAX and CuPy are skipped. On a machine with a GPU, install PyTorch, JAX and CuPy, and run
# PYTHONPATH=... python3 -m pytest tests/python instead.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=${1:-build-python}
numpy=$(sed -n 's/^numpy==//p' scripts/pytorch_requirements.txt)
limit_bytes=$((4 << 20))
rm -rf "$tree/dist" "$tree/venv"
mkdir -p "$tree"
python3 -m venv "$tree/venv"
quiet=(--quiet --disable-pip-version-check)
"$tree/venv/bin/pip" wheel "${quiet[@]}" --no-deps --wheel-dir "$tree/dist" --config-settings=build.verbose=false \
  --config-settings=cmake.define.RAPT_WERROR=ON --config-settings=cmake.define.RAPT_LIBRARY_LAUNCHER="$(command -v ccache)" .
wheel=$(echo "$tree"/dist/*.whl)
case $wheel in
  *-cp310-abi3-*.whl) ;;
  *) echo "$wheel: must be one wheel for CPython 3.10 and later (cp310-abi3)" >&2; exit 1 ;;
esac
bytes=$(stat -c %s "$wheel")
echo "$(basename "$wheel"): $bytes bytes"
[ "$bytes" -le "$limit_bytes" ] || { echo "more than $limit_bytes bytes" >&2; exit 1; }
"$tree/venv/bin/pip" install "${quiet[@]}" "$wheel" "numpy==$numpy" pytest pytest-xdist ml_dtypes "ruff==0.17.6"
"$tree/venv/bin/ruff" format --quiet --check python tests/python bench examples/python
"$tree/venv/bin/ruff" check --quiet python tests/python bench examples/python
needed=$("$tree/venv/bin/python" -c 'import rapt._core; print(rapt._core.__file__)' | xargs ldd | awk '{print $1}' |
  grep -vE '^(linux-vdso|libstdc\+\+|libm|libgcc_s|libc|/lib)' || true)
[ -z "$needed" ] || { echo "rapt._core needs more than the C++ runtime: $needed" >&2; exit 1; }
"$tree/venv/bin/python" -m pytest -q tests/python/test_numpy.py
pytorch=$(scripts/pytorch.sh)
echo "$pytorch" >"$(echo "$tree"/venv/lib/python3*/site-packages)/pytorch.pth"
"$tree/venv/bin/python" -c 'import torch, transformers; print("PyTorch", torch.__version__, "transformers", transformers.__version__)'
# torch.compile gets an empty cache: code that it stored for another build of rapt can call the operators differently.
rm -rf "$tree/inductor"
export TORCHINDUCTOR_CACHE_DIR=$PWD/$tree/inductor
# Otherwise torch.compile builds a test program for each vector instruction set, which takes a minute.
export TORCHINDUCTOR_VEC_ISA_OK=0 TORCHINDUCTOR_SIMDLEN=1
OMP_NUM_THREADS=1 "$tree/venv/bin/python" -m pytest -q -rs --durations=15 -n "$(nproc)" --dist worksteal --ignore tests/python/test_numpy.py tests/python
