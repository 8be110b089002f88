"""Makes .venv and installs Pizarra with its pinned dependencies into it.

Owns the one way of installing that `make run`, `make test` and the Dockerfile share; knows nothing of what is
installed. Invariant: the stamp inside .venv exists only after a complete install, and names everything the install
was made from, so a second call with nothing changed ends before pip is started. Standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "pizarra-installed.json"
CONSTRAINTS = ROOT / "constraints.txt"
INPUTS = (ROOT / "pyproject.toml", CONSTRAINTS, ROOT / "scripts" / "bootstrap.py")


class BootstrapError(Exception):
    """What went wrong and what to do about it, in one message for the user."""


@dataclass(frozen=True)
class Stamp:
    """What a finished install was made from."""

    root: str
    fingerprint: str
    torch_source: str  # an index URL, "cpu" (no driver was found) or "default"
    extras: tuple[str, ...]

    @classmethod
    def read(cls) -> Stamp | None:
        try:
            fields = json.loads(STAMP.read_text(encoding="utf-8"))
            return cls(fields["root"], fields["fingerprint"], fields["torch_source"], tuple(fields["extras"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self) -> None:
        STAMP.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def say(message: str) -> None:
    print(f"pizarra: {message}", flush=True)


def has_nvidia_driver() -> bool:
    if Path("/proc/driver/nvidia/version").exists():
        return True
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def wanted_stamp(extras: tuple[str, ...], before: Stamp | None) -> Stamp:
    """What .venv shall be made from. Extras only grow, so that `make run` between two `make test` costs nothing; and a
    named index is remembered: leaving it out the next time never swaps torch for another build."""
    digest = hashlib.sha256()
    for path in INPUTS:
        digest.update(path.read_bytes())
    source = os.environ.get("PIZARRA_TORCH_INDEX", "").strip()
    if not source and before is not None and "://" in before.torch_source:
        source = before.torch_source
    if not source:
        source = "default" if has_nvidia_driver() else "cpu"
    kept = before.extras if before is not None else ()
    return Stamp(str(ROOT), digest.hexdigest(), source, tuple(sorted({*kept, *extras})))


def venv_version() -> tuple[int, int] | None:
    """The version of .venv's Python where it runs and has pip, else None."""
    probe = "import sys, importlib.util as u; print(*sys.version_info[:2], u.find_spec('pip') is not None)"
    try:
        done = subprocess.run([VENV_PYTHON, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
        major, minor, has_pip = done.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return (int(major), int(minor)) if has_pip == "True" else None


def make_venv(before: Stamp | None) -> None:
    """Keeps a usable .venv; makes a new one where there is none, or where it is broken, too old or moved."""
    version = venv_version()
    moved = before is not None and before.root != str(ROOT)
    if version is not None and version >= (3, 11) and not moved:
        return
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        raise BootstrapError(
            f"{sys.executable} cannot make virtual environments: its module venv or ensurepip is missing. "
            f"On Debian and Ubuntu: apt install python3-venv (or {package}); then run this again."
        )
    if moved:
        say(f".venv belongs to {before.root if before else 'another folder'}; making it anew")
    elif VENV.exists():
        say(".venv is broken or older than Python 3.11; making it anew")
    else:
        say(f"making .venv with Python {sys.version.split()[0]} ({sys.executable})")
    if subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=False).returncode != 0:
        raise BootstrapError(
            f"Python could not make {VENV}; its message is above. "
            "Check that the folder is writable and the disk is not full, then run this again."
        )


def pip(*arguments: str, quiet: bool = False) -> bool:
    """Runs .venv's pip with the user's own configuration; quiet is for a question whose answer may be no."""
    command = [str(VENV_PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run(command, check=False, capture_output=quiet, stdin=subprocess.DEVNULL, cwd=ROOT)
    return done.returncode == 0


def pinned_torch() -> str:
    pin = re.search(r"^torch==(\S+)$", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    if pin is None:
        raise BootstrapError(f"{CONSTRAINTS} has no line torch==VERSION; restore the file from the repository.")
    return pin.group(1)


def torch_build() -> str:
    """'2.13.0+cpu (CPU build)', read from torch's own version file without importing torch."""
    probe = (
        "import importlib.util as u, pathlib, runpy;"
        "v = runpy.run_path(str(pathlib.Path(u.find_spec('torch').origin).with_name('version.py')));"
        "kind = f\"CUDA {v['cuda']} build\" if v.get('cuda') else 'ROCm build' if v.get('hip') else 'CPU build';"
        "print(f\"{v['__version__']} ({kind})\")"
    )
    done = subprocess.run([VENV_PYTHON, "-c", probe], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BootstrapError(f"torch does not load:\n{done.stderr.strip()}\nRemove .venv and run this again.")
    return done.stdout.strip()


def install_torch(source: str, before: Stamp | None) -> None:
    """Installs the pinned torch from `source` and says which build it took; its dependencies follow with the rest."""
    version = pinned_torch()
    requirement, options = f"torch=={version}", ["--no-deps"]
    if before is not None and before.torch_source != source:
        options.append("--force-reinstall")
    if "://" in source:
        say(f"installing torch {version} from {source}")
        options += ["--index-url", source]
    elif source == "default":
        say(f"an NVIDIA driver is here: installing the default build of torch {version}")
    elif pip("install", "--dry-run", *options, f"{requirement}+cpu", quiet=True):
        say(f"no NVIDIA driver: installing the CPU build of torch {version}")
        requirement += "+cpu"
    else:
        say(
            f"no NVIDIA driver, and no CPU build of torch {version} in your package index: installing the default build"
        )
        say("(on x86_64 Linux that can be 3 GB; PIZARRA_TORCH_INDEX=https://download.pytorch.org/whl/cpu avoids it)")
    if not pip("install", *options, requirement):
        raise BootstrapError(
            f"pip could not install {requirement}; its message is above. Check the network and pip's settings "
            "(pip config list), or set PIZARRA_TORCH_INDEX to an index that has it, then run this again."
        )
    build = torch_build()
    say(f"torch {build}")
    if source == "default" and "CPU build" in build:
        say(
            "this build cannot use the GPU; for one that can: PIZARRA_TORCH_INDEX=https://download.pytorch.org/whl/cu130"
        )


def install(wanted: Stamp, before: Stamp | None) -> None:
    STAMP.unlink(missing_ok=True)
    install_torch(wanted.torch_source, before)
    target = f".[{','.join(wanted.extras)}]" if wanted.extras else "."
    say("installing Pizarra and its dependencies at the versions of constraints.txt")
    brief = ["--quiet"] if before is not None else []  # else a line for each of the hundred that are there already
    if not pip("install", *brief, "--constraint", str(CONSTRAINTS), "--editable", target):
        raise BootstrapError(
            "pip could not install the dependencies; its message is above. "
            "Nothing needs cleaning up: put right what it names and run this again."
        )
    wanted.write()
    say("installed")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make .venv and install Pizarra into it.")
    parser.add_argument("--extra", action="append", default=[], help="an optional set of dependencies, such as dev")
    extras = tuple(parser.parse_args().extra)
    try:
        last = Stamp.read()
        make_venv(last)
        wanted, before = wanted_stamp(extras, last), Stamp.read()  # a new .venv holds nothing of the last
        if before == wanted:
            say("the environment in .venv is up to date")
        else:
            install(wanted, before)
    except BootstrapError as error:
        print(f"pizarra: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\npizarra: interrupted; run the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
