#!/bin/sh
# Runs the checks that need an NVIDIA GPU. Exit status 2: there is none here, so nothing was checked.
# Needs torch, triton and transformers only: .venv's where its torch sees the GPU, else those of python3.
set -eu

cd "$(dirname "$0")/.."

if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo "gpu-check: no NVIDIA GPU here (nvidia-smi lists none): nothing was checked" >&2
    exit 2
fi
nvidia-smi -L

for candidate in .venv/bin/python ${PYTHON:-python3}; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        exec "$candidate" -m bench.gpu_check "$@"
    fi
done

echo "gpu-check: a GPU is here, but no Python whose torch can use it (tried .venv/bin/python and ${PYTHON:-python3})." >&2
echo "Install one: PIZARRA_TORCH_INDEX=https://download.pytorch.org/whl/cu130 sh scripts/bootstrap.sh" >&2
exit 1
