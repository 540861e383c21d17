#!/usr/bin/env bash
# Prints the path of a folder of Python packages with PyTorch and transformers, for tests on the CPU. If the folder is
# missing, creates it first: this takes a minute, and 600 MB from PyPI. The folder is in RAPT_CI_CACHE or in the user's
# cache, and its name depends on the version of Python and on the contents of pytorch_requirements.txt,
# cuda_stand_ins.py and this script. Called by .ci/run (early, in the background) and python_tests.sh; a second call
# waits for the first. Fails unless both packages can be imported.
set -euo pipefail
cd "$(dirname "$0")"
python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
key=$(cat pytorch_requirements.txt cuda_stand_ins.py pytorch.sh | sha256sum | cut -c 1-12)
cache=${RAPT_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rapt-ci}
folder=$cache/pytorch-$python-$key
mkdir -p "$cache"
exec 9>"$folder.lock"
flock 9

imports() { PYTHONPATH=$1 python3 -c 'import torch, transformers; (torch.ones(2, 2) @ torch.ones(2, 2)).sum().item()'; }

if [ ! -d "$folder" ]; then
  new=$folder.new
  rm -rf "$new"
  python3 -m venv "$new.venv"
  pip=("$new.venv/bin/pip" install --quiet --disable-pip-version-check --only-binary ":all:" --no-compile --target "$new")
  "${pip[@]}" --no-deps -r pytorch_requirements.txt >&2
  python3 cuda_stand_ins.py "$new" >&2 && imports "$new" 2>/dev/null || {
    echo "PyTorch does not load with empty CUDA libraries: installing all its requirements" >&2
    rm -rf "$new"
    "${pip[@]}" -r pytorch_requirements.txt >&2
    imports "$new" >&2
  }
  rm -rf "$new.venv"
  mv "$new" "$folder"
fi
echo "$folder"
