#!/bin/sh
# Runs the checks that need an NVIDIA GPU. Exit status 2: there is none here, so nothing was checked.
# Needs torch, triton and transformers only: .venv's where its torch sees the GPU, else those of python3. Whether there
# is a GPU torch decides: containers that are lent one often have no nvidia-smi.
# --dry-run: every check in miniature on the CPU, with the first Python that has torch.
set -eu

cd "$(dirname "$0")/.."

dry=
test='import sys, torch; sys.exit(not torch.cuda.is_available())'
case " $* " in
*" --dry-run "*) dry=yes test='import torch, triton, transformers' ;;
esac

for candidate in .venv/bin/python ${PYTHON:-python3}; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c "$test" 2>/dev/null; then
        exec "$candidate" -m bench.gpu_check "$@"
    fi
done

if [ -z "$dry" ] && ! nvidia-smi -L 2>/dev/null | grep '^GPU'; then
    echo "gpu-check: no NVIDIA GPU here (no torch sees one, and nvidia-smi lists none): nothing was checked" >&2
    exit 2
fi
echo "gpu-check: no Python here has what is needed (tried .venv/bin/python and ${PYTHON:-python3}): torch, triton and" >&2
echo "transformers; without --dry-run also a torch that can use the GPU. Install one:" >&2
echo "PIZARRA_TORCH_INDEX=https://download.pytorch.org/whl/cu130 sh scripts/bootstrap.sh" >&2
exit 1
