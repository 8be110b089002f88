"""Guided answers obey their grammar, whatever runs beside them; grammars that cannot be are refused with the place."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.core.outputs import RequestOutput
from engine.core.sampling_params import Guided, SamplingParams
from engine.engine import Engine
from engine.sample.grammar import GrammarCompiler, GrammarError
from engine.vocab import Vocab
from tests.engine.stepping import load, rows_until_done
from tests.engine.tiny_checkpoint import EOS_TOKEN_ID, tiny_llama_checkpoint, tiny_tokenizer

VOCAB = Vocab(tiny_tokenizer(), eos_token_ids=(EOS_TOKEN_ID,))
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,8}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
}
CHOICES = ["yes", 'no "quoted"', "maybe\nso", "ñandú"]


def person_is_valid(text: str) -> bool:
    value = json.loads(text)
    return (
        set(value) <= {"name", "age", "tags"}
        and re.fullmatch("[a-z]{1,8}", value["name"]) is not None
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and len(value.get("tags", [])) <= 3
        and set(value.get("tags", [])) <= {"a", "b"}
    )


CASES: dict[str, tuple[Guided, Any]] = {
    "json_schema": (Guided("json_schema", json.dumps(PERSON)), person_is_valid),
    "regex": (Guided("regex", r"[0-9]{3}-(ab|cd)+x"), re.compile(r"[0-9]{3}-(ab|cd)+x").fullmatch),
    "ebnf": (Guided("ebnf", 'root ::= "<" [a-c]* ">" tail\ntail ::= "." | "!"'), re.compile("<[a-c]*>[.!]").fullmatch),
    "choice": (Guided("choice", json.dumps(CHOICES)), CHOICES.__contains__),
}


def compiler() -> GrammarCompiler:
    return GrammarCompiler(lambda: [VOCAB.token_bytes(token) for token in range(320)], 320, [EOS_TOKEN_ID])


def text_of(rows: Sequence[RequestOutput]) -> str:
    return b"".join(VOCAB.token_bytes(token) for row in rows for token in row.token_ids).decode()


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return load(tiny_llama_checkpoint(tmp_path / "tiny")).engine


@pytest.mark.parametrize("kind", CASES)
def test_every_answer_belongs_to_its_grammar(engine: Engine, kind: str) -> None:
    guided, is_valid = CASES[kind]
    for seed in range(6):
        params = SamplingParams(temperature=2.0, seed=seed, max_tokens=400, guided=guided, min_tokens=2)
        assert engine.add_request(str(seed), [5, 6, 7], params) is None
    rows = rows_until_done(engine)
    for seed in range(6):
        mine = [row for row in rows if row.request_id == str(seed)]
        assert mine[-1].error is None, mine[-1].error
        if mine[-1].finish_reason == "stop":
            assert is_valid(text_of(mine)), text_of(mine)
        else:
            assert (mine[-1].finish_reason, sum(len(row.token_ids) for row in mine)) == ("length", 400)
    assert sum(row.finish_reason == "stop" for row in rows) >= 4
    assert engine.pool.num_used == 0


def test_any_json_is_an_object(engine: Engine) -> None:
    params = SamplingParams(seed=1, max_tokens=480, guided=Guided("json"), logit_bias={VOCAB.encode("}")[0]: 4.0})
    engine.add_request("r", [5], params)
    rows = rows_until_done(engine)
    assert rows[-1].finish_reason == "stop"
    assert isinstance(json.loads(text_of(rows)), dict)


def test_the_text_is_the_same_alone_in_company_and_preempted(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    roomy = load(path).engine
    tight = load(path, kv_cache_memory_bytes=10 * 16 * 2 * 2 * 2 * 16 * 2, max_model_len=128).engine
    guided = Guided("regex", "([a-z]{4} [0-9]{4},)+")
    params = [SamplingParams(seed=seed, max_tokens=60, guided=guided if seed % 2 else None) for seed in range(6)]
    found = []
    for engine in (roomy, tight):
        for seed, one in enumerate(params):
            engine.add_request(str(seed), [9, 8, 7 + seed], one)
        rows = rows_until_done(engine)
        found.append({seed: text_of([r for r in rows if r.request_id == str(seed)]) for seed in (1, 3, 5)})
    assert tight.scheduler.num_preemptions > 0
    assert found[0] == found[1]
    assert all(re.match("[a-z]{4} [0-9]{4},", text) for text in found[0].values())


def test_samples_of_a_guided_request_each_have_a_place_of_their_own(engine: Engine) -> None:
    guided, is_valid = CASES["choice"]
    engine.add_request("r", [5, 6], SamplingParams(seed=3, guided=guided, temperature=3.0), n=6)
    rows = rows_until_done(engine)
    answers = [text_of([row for row in rows if row.index == index]) for index in range(6)]
    assert all(map(is_valid, answers))
    assert len(set(answers)) > 1


FAULTS = [
    ("regex", "a(b", "position 4: The parenthesis is not closed"),
    ("regex", "a(?=b)", "Lookahead is not supported"),
    ("ebnf", 'root ::= "a" | foo', 'line 1, column 16: Rule "foo" is not defined'),
    ("ebnf", 'root ::= root "a"', "no text satisfies it"),
    ("choice", "[]", "at least one string"),
    ("choice", "[1]", "at least one string"),
    ("choice", "[", "not a JSON list of strings"),
    ("json_schema", '{"type":', "at /: not JSON"),
    ("json_schema", '{"type": "objct"}', 'Unsupported type "objct"'),
    ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "minimum greater than maximum"),
    ("json_schema", '{"properties": {"x": {"not": {}}}}', "at /properties/x/not: the keyword 'not' is not supported"),
    ("json_schema", '{"$ref": "#/$defs/x"}', "$defs"),
]


@pytest.mark.parametrize(("kind", "text", "told"), FAULTS)
def test_a_grammar_that_cannot_be_is_refused_with_the_place(engine: Engine, kind: str, text: str, told: str) -> None:
    engine.add_request("good", [5], SamplingParams(max_tokens=5, ignore_eos=True))
    assert engine.add_request("bad", [5], SamplingParams(guided=Guided(kind, text)), n=2) is None
    ended = [row for row in rows_until_done(engine) if row.finish_reason is not None]
    bad = [row for row in ended if row.request_id == "bad"]
    assert [(row.finish_reason, row.index) for row in bad] == [("error", 0), ("error", 1)]
    assert bad[0].error is not None
    assert bad[0].error.startswith(f"guided: {kind}: ")
    assert told in bad[0].error
    assert "/project/" not in bad[0].error
    assert [row.finish_reason for row in ended if row.request_id == "good"] == ["length"]
    assert not engine.has_requests()


def test_a_grammar_can_be_checked_without_a_request(engine: Engine) -> None:
    engine.add_request("good", [5], SamplingParams(max_tokens=5, ignore_eos=True))
    engine.check_grammar("fine", Guided("regex", "[0-9]+"))
    engine.check_grammar("broken", Guided("regex", "a(b"))
    rows: list[RequestOutput] = []
    while {row.request_id for row in rows if row.finish_reason} != {"good", "fine", "broken"}:
        rows += engine.step() if engine.has_work() else []
    verdicts = {row.request_id: (row.finish_reason, row.error) for row in rows if row.request_id != "good"}
    assert verdicts["fine"] == ("stop", None)
    assert str(verdicts["broken"][1]).startswith("guided: regex: ")
    assert engine.stats().requests_finished_total == 1, "a check is no request"
    assert not engine.has_requests()


def test_others_run_while_a_grammar_is_compiled_and_an_abort_needs_no_compiler(engine: Engine) -> None:
    gate = threading.Event()

    def slow_tokens() -> list[bytes]:
        gate.wait(30)
        return [VOCAB.token_bytes(token) for token in range(320)]

    engine.grammars = GrammarCompiler(slow_tokens, 320, [EOS_TOKEN_ID])
    guided = Guided("regex", "[0-9]+")
    engine.add_request("guided", [5], SamplingParams(seed=1, guided=guided, max_tokens=9), n=2)
    engine.add_request("doomed", [5], SamplingParams(guided=guided))
    engine.add_request("plain", [5], SamplingParams(max_tokens=6, ignore_eos=True))
    ended = []
    while engine.has_work():
        ended += [row.request_id for row in engine.step() if row.finish_reason is not None]
    assert ended == ["plain"]
    assert engine.stats().num_requests_waiting == 3
    assert [row.finish_reason for row in engine.abort_request("doomed")] == ["abort"]
    gate.set()
    rows = rows_until_done(engine)
    assert {row.request_id for row in rows} == {"guided"}
    assert re.fullmatch("[0-9]+", text_of([row for row in rows if row.index == 1]))


def test_what_was_compiled_is_kept_and_takers_are_woken() -> None:
    grammars = compiler()
    woken = threading.Event()
    grammars.on_compiled = woken.set
    guided = CASES["json_schema"][0]
    grammars.submit("a", guided)
    assert woken.wait(30)
    [(name, first)] = list(grammars.take_compiled())
    grammars.submit("b", guided)
    assert grammars.has_compiled(), "it was in the cache"
    [(other, second)] = list(grammars.take_compiled())
    assert (name, other) == ("a", "b")
    assert first is second
    assert not grammars.has_compiled()


def test_a_vocabulary_that_cannot_be_read_is_an_error_of_the_request() -> None:
    def broken() -> list[bytes]:
        raise OSError("tokenizer.json is gone")

    grammars = GrammarCompiler(broken, 320, [EOS_TOKEN_ID])
    grammars.submit("a", Guided("json"))
    while not grammars.has_compiled():
        time.sleep(0.001)
    [(_, outcome)] = list(grammars.take_compiled())
    assert isinstance(outcome, GrammarError)
    assert "tokenizer.json is gone" in str(outcome)


def test_a_grammar_ends_by_itself_where_the_model_has_no_end_token() -> None:
    grammars = GrammarCompiler(lambda: [bytes([byte]) for byte in range(256)], 256, [])
    matcher = grammars.compile(Guided("choice", '["ab"]')).matcher()
    for byte in b"ab":
        assert not matcher.is_complete
        allowed = matcher.allowed()
        assert [token for token in range(256) if allowed[token // 8] >> token % 8 & 1] == [byte]
        matcher.accept(byte)
    assert matcher.is_complete


def test_without_the_library_a_guided_request_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(GrammarError, match="pip install xgrammar"):
        compiler().compile(Guided("json"))
