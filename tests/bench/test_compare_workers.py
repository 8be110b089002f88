"""Engines in processes of their own: made-up ones that answer, chatter, refuse, crash and hang."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import compare_workers
from bench.compare_workers import MARCHES, Models, PeerError, Start, Worker, starts
from bench.peer_protocol import by_difference, check_lengths
from bench.servers import ROOT

ENGINE = """
import os, sys, time
from bench.peer_protocol import serve

def load(model, threads, max_seqs, max_len):
    print("chatter of a library")
    os.system("echo chatter of a C library")
    return {"version": model, "threads": threads}

def refuse():
    raise ValueError("no room")

def crash():
    print("about to fall", file=sys.stderr, flush=True)
    os.abort()

serve({"load": load, "add": lambda a, b: a + b, "refuse": refuse, "crash": crash, "pid": os.getpid,
       "leave": lambda: os._exit(3), "hang": lambda: time.sleep(60)})
"""


@contextmanager
def worker(folder: Path, source: str = ENGINE) -> Iterator[Worker]:
    script = folder / "engine.py"
    script.write_text(textwrap.dedent(source), encoding="utf-8")
    start = Start("made-up", [sys.executable, str(script)], ROOT, Path("a model"), {"PYTHONPATH": str(ROOT)})
    one = Worker(start, folder / "engine.log", threads=2, max_seqs=4, max_len=64)
    try:
        yield one
    finally:
        one.close()
    assert one.cpu_seconds() is None


def test_an_engine_answers_whatever_its_libraries_print(tmp_path: Path) -> None:
    with worker(tmp_path) as one:
        assert one.ask("add", a=1, b=2) == 3
        assert one.described == {"version": "a model", "threads": 2}
        assert one.cpu_seconds() is not None
    assert "chatter of a C library" in one.log.read_text(encoding="utf-8")


def test_a_refusal_is_an_error_and_the_engine_stays(tmp_path: Path) -> None:
    with worker(tmp_path) as one:
        before = one.ask("pid")
        with pytest.raises(PeerError, match="refuse: ValueError: no room"):
            one.ask("refuse")
        assert one.ask("pid") == before


def test_one_that_cannot_load_says_why_whatever_it_is_asked(tmp_path: Path) -> None:
    with worker(tmp_path, ENGINE.replace('print("chatter of a library")', 'raise OSError("no such model")')) as one:
        for _ in range(2):
            with pytest.raises(PeerError, match="load: OSError: no such model"):
                one.ask("add", a=1, b=2)


@pytest.mark.parametrize(
    ("what", "how"),
    [("crash", "was ended by SIGABRT; its log ends: .*about to fall"), ("leave", "ended with status 3")],
)
def test_an_end_is_told_and_the_next_question_starts_it_anew(tmp_path: Path, what: str, how: str) -> None:
    with worker(tmp_path) as one:
        before = one.ask("pid")
        with pytest.raises(PeerError, match=how):
            one.ask(what)
        assert one.ask("pid") != before


def test_one_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(tmp_path) as one:
        one.load()
        monkeypatch.setattr(compare_workers, "PATIENCE_S", 0.2)
        with pytest.raises(PeerError, match="hang: took too long"):
            one.ask("hang")
        assert one.cpu_seconds() is None


def test_one_that_is_not_set_up_says_what_sets_it_up(tmp_path: Path) -> None:
    start = Start("made-up", [str(tmp_path / "nowhere" / "python")], tmp_path, Path("a model"))
    with pytest.raises(PeerError, match=r"bench/peers\.sh"):
        Worker(start, tmp_path / "log", threads=1, max_seqs=1, max_len=1).ask("pid")


def test_decoding_is_what_longer_answers_take_more() -> None:
    def generate(prompts: object, tokens: int) -> float:  # 3 s of prompt, 0.5 s a token
        del prompts
        return 3 + tokens / 2

    assert by_difference(generate, [[1], [2]], 8, 40) == {"tokens": 64, "seconds": 16.0}


def test_a_difference_that_stays_negative_is_an_error_and_one_bad_moment_is_not() -> None:
    with pytest.raises(RuntimeError, match="3 times"):
        by_difference(lambda prompts, tokens: 1.0, [[1]], 1, 2)
    times = iter([5.0, 4.0, 1.0, 3.0])
    assert by_difference(lambda prompts, tokens: next(times), [[1]], 1, 2) == {"tokens": 1, "seconds": 2.0}


@pytest.mark.parametrize("lengths", [[4, 4], [4, 4, 3], [4, 4, 4, 4], []])
def test_answers_cut_short_are_no_measurement(lengths: list[int]) -> None:
    check_lengths([4, 4, 4], 3, 4)
    with pytest.raises(RuntimeError, match="3 answers of 4 tokens"):
        check_lengths(lengths, 3, 4)


@pytest.mark.parametrize("march", [None, *MARCHES])
def test_each_engine_is_kept_to_the_instructions(tmp_path: Path, march: str | None) -> None:
    models = Models(tmp_path / "model.gguf", tmp_path / "bf16")
    found = {one.name: one for one in starts(tmp_path / "peers", models, 2, march, tmp_path)}
    ours = found["Pizarra"]
    assert ours.variables.get("PIZARRA_KERNEL_MARCH") == march
    assert ("vLLM" in found) == (march is None)  # it cannot be told
    for name in ("OpenVINO", "transformers"):
        assert ("ONEDNN_MAX_CPU_ISA" in found[name].variables) == (march is not None)
    if march is not None:
        assert found["llama.cpp"].variables["LD_LIBRARY_PATH"].endswith(f"llama.cpp/{march}/bin")


def test_a_peer_finds_our_benches_and_none_of_our_packages(tmp_path: Path) -> None:
    models = Models(tmp_path / "model.gguf", tmp_path / "bf16")
    for start in starts(tmp_path / "peers", models, 1, None, tmp_path):
        if start.name != "Pizarra":
            assert (start.folder / "bench" / "peer_protocol.py").exists()
            assert not (start.folder / "kernels").exists()
