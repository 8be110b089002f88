"""The set-up behind `make run`: which Python is taken, when nothing is done, which torch is asked for."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts import bootstrap
from scripts.bootstrap import BootstrapError, Stamp

ROOT = Path(__file__).resolve().parents[1]
STAMP = Stamp(root=str(ROOT), fingerprint="f", torch_source="cpu", extras=("dev",))


def run_shell(path: Path, python: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(path), "PYTHON": python}
    command = ["/bin/sh", str(ROOT / "scripts" / "bootstrap.sh"), "--help"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """A PATH with nothing but what the scripts themselves call."""
    for tool in ("dirname", "head", "grep"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    return tmp_path


def add_program(folder: Path, name: str, body: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    program.chmod(0o755)


def test_an_old_python_is_refused_with_the_remedy(bin_folder: Path) -> None:
    add_program(bin_folder, "python3", 'test "$1" = --version && echo Python 3.9.2 || exit 1')
    done = run_shell(bin_folder)
    assert done.returncode == 1
    assert "needs Python 3.11 or newer" in done.stderr
    assert "python3 (Python 3.9.2)" in done.stderr
    assert "PYTHON=" in done.stderr


def test_no_python_at_all_is_said(bin_folder: Path) -> None:
    done = run_shell(bin_folder)
    assert done.returncode == 1
    assert "no Python was found" in done.stderr


def test_a_newer_python_beside_an_old_one_is_taken(bin_folder: Path) -> None:
    add_program(bin_folder, "python3", "exit 1")
    add_program(bin_folder, "python3.12", f'exec {sys.executable} "$@"')
    done = run_shell(bin_folder)
    assert done.returncode == 0, done.stderr
    assert "--extra" in done.stdout


def test_a_missing_venv_module_names_the_debian_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bootstrap, "VENV_PYTHON", tmp_path / "absent")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BootstrapError, match="apt install python3-venv"):
        bootstrap.make_venv(None)


def run_main(monkeypatch: pytest.MonkeyPatch, before: Stamp | None, *arguments: str) -> list[Stamp]:
    """The installs that a call makes where `before` is what the last one left."""
    installs: list[Stamp] = []
    monkeypatch.setattr(sys, "argv", ["bootstrap", *arguments])
    monkeypatch.setattr(Stamp, "read", lambda: before)
    monkeypatch.setattr(bootstrap, "make_venv", lambda before: None)
    monkeypatch.setattr(bootstrap, "has_nvidia_driver", lambda: False)
    monkeypatch.setattr(bootstrap, "install", lambda wanted, before: installs.append(wanted))
    monkeypatch.delenv("PIZARRA_TORCH_INDEX", raising=False)
    assert bootstrap.main() == 0
    return installs


def test_nothing_is_installed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    (made,) = run_main(monkeypatch, None, "--extra", "dev")
    assert made.extras == ("dev",)
    assert run_main(monkeypatch, made, "--extra", "dev") == []
    assert run_main(monkeypatch, made) == [], "make run after make test has nothing to do"


@pytest.mark.parametrize("change", [{"fingerprint": "other"}, {"torch_source": "default"}, {"extras": ()}])
def test_a_change_installs_again(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    (made,) = run_main(monkeypatch, None, "--extra", "dev")
    assert run_main(monkeypatch, replace(made, **change), "--extra", "dev") == [made]


@pytest.mark.parametrize(
    ("index", "driver", "before", "source"),
    [
        ("", False, None, "cpu"),
        ("", True, None, "default"),
        ("https://a/cpu", True, None, "https://a/cpu"),
        ("", True, "https://a/cpu", "https://a/cpu"),
        ("https://b/cu", False, "https://a/cpu", "https://b/cu"),
        ("", True, "cpu", "default"),
    ],
)
def test_where_torch_comes_from(
    monkeypatch: pytest.MonkeyPatch, index: str, driver: bool, before: str | None, source: str
) -> None:
    monkeypatch.setenv("PIZARRA_TORCH_INDEX", index)
    monkeypatch.setattr(bootstrap, "has_nvidia_driver", lambda: driver)
    earlier = None if before is None else replace(STAMP, torch_source=before)
    assert bootstrap.wanted_stamp((), earlier).torch_source == source


@pytest.mark.parametrize("offered", [True, False])
def test_without_a_driver_a_cpu_build_is_preferred(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], offered: bool
) -> None:
    installed: list[str] = []

    def pip(*arguments: str, quiet: bool = False) -> bool:
        if quiet:
            return offered
        installed.append(arguments[-1])
        return True

    monkeypatch.setattr(bootstrap, "pip", pip)
    monkeypatch.setattr(bootstrap, "torch_build", lambda: "9.9 (some build)")
    bootstrap.install_torch("cpu", None)
    assert installed == [f"torch=={bootstrap.pinned_torch()}" + ("+cpu" if offered else "")]
    said = capsys.readouterr().out
    assert "torch 9.9 (some build)" in said
    assert ("PIZARRA_TORCH_INDEX" in said) is not offered


def test_another_source_replaces_the_torch_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def pip(*arguments: str, quiet: bool = False) -> bool:
        calls.append(arguments)
        return True

    monkeypatch.setattr(bootstrap, "pip", pip)
    monkeypatch.setattr(bootstrap, "torch_build", lambda: "9.9 (some build)")
    bootstrap.install_torch("https://b/cu", STAMP)
    assert "--force-reinstall" in calls[-1]
    assert calls[-1][calls[-1].index("--index-url") + 1] == "https://b/cu"


def test_a_broken_venv_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to("/nowhere/python")
    monkeypatch.setattr(bootstrap, "VENV", venv)
    monkeypatch.setattr(bootstrap, "VENV_PYTHON", venv / "bin" / "python")
    bootstrap.make_venv(None)
    assert bootstrap.venv_version() == sys.version_info[:2]


def test_an_unwritable_folder_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / "file" / ".venv")
    monkeypatch.setattr(bootstrap, "VENV_PYTHON", tmp_path / "file" / ".venv" / "bin" / "python")
    with pytest.raises(BootstrapError, match="could not make"):
        bootstrap.make_venv(None)


def test_an_unreadable_stamp_means_install_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / "stamp.json")
    assert Stamp.read() is None
    (tmp_path / "stamp.json").write_text("{", encoding="utf-8")
    assert Stamp.read() is None
    STAMP.write()
    assert Stamp.read() == STAMP


def test_gpu_check_without_a_gpu_says_so(bin_folder: Path) -> None:
    command = ["/bin/sh", str(ROOT / "scripts" / "gpu_check.sh")]
    done = subprocess.run(command, env={"PATH": str(bin_folder)}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no NVIDIA GPU" in done.stderr


@pytest.mark.parametrize(
    ("torch_sees", "smi", "status", "said"),
    [
        (True, "", 0, "-m bench.gpu_check --only roof"),
        (True, "GPU 0: a card", 0, "-m bench.gpu_check --only roof"),
        (False, "", 2, "no NVIDIA GPU"),
        (False, "GPU 0: a card", 1, "a torch that can use the GPU"),
    ],
)
def test_torch_decides_whether_there_is_a_gpu(
    torch_sees: bool, smi: str, status: int, said: str, bin_folder: Path, tmp_path: Path
) -> None:
    """A container that is lent a card often has no nvidia-smi; a tree of its own has no .venv."""
    scripts = tmp_path / "tree" / "scripts"
    scripts.mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "gpu_check.sh", scripts)
    add_program(bin_folder, "python3", f'if test "$1" = -c; then exit {int(not torch_sees)}; fi; echo "$@"')
    if smi:
        add_program(bin_folder, "nvidia-smi", f"echo '{smi}'")
    command = ["/bin/sh", str(scripts / "gpu_check.sh"), "--only", "roof"]
    done = subprocess.run(command, env={"PATH": str(bin_folder)}, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert said in done.stdout + done.stderr
