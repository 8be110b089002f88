"""However an answer's text is cut, its items are the same, and so are the tokens they are made of."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.dialects.responses_items import Event, OutputItems
from app.parsers.answer import AnswerParser
from app.parsers.json_calls import HermesParser
from app.parsers.reasoning import ReasoningParser
from app.sample_text import SampleText, TokenLogprob
from engine.core.outputs import Logprobs, RequestOutput
from engine.core.sampling_params import SamplingParams
from engine.vocab import Vocab

END = 256
CALL = '<tool_call>{"name": "add", "arguments": {"a": "é🦊"}}</tool_call>'
FRAGMENTS = ("<think>", "</think>", "\n", " ", "a", "é", "🦊", "so <b>", "<tool_call>", CALL, '{"name": "add"', "}")
answers = st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join)
KINDS = ("plain", "tools", "thoughts", "opened")


class Bytes:
    """A vocabulary whose token ids are bytes; the last one ends an answer."""

    eos_token_ids = (END,)

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == END else bytes([token_id])


def parser(kind: str) -> AnswerParser:
    reasoning = None if kind in ("plain", "tools") else ReasoningParser(opened=kind == "opened")
    return AnswerParser(reasoning, None if kind == "plain" else HermesParser(("add",)))


def shown(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    return [{"token": token.token_id, "logprob": token.logprob} for token in tokens]


def answered(
    kind: str, text: str, cuts: Sequence[int] = (), *, logprobs: bool = True, cut: bool = False
) -> tuple[list[dict[str, Any]], list[Event]]:
    """The items and events of a text whose tokens come in rows that end at these places."""
    ids = [*text.encode(), END]
    ends = sorted({place % len(ids) for place in cuts} | {len(ids)})
    sample = SampleText(cast(Vocab, Bytes()), SamplingParams(), (), include_stop=False)
    items = OutputItems(parser(kind), "r", shown if logprobs else None)
    events: list[Event] = []
    for start, end in zip([0, *ends], ends, strict=False):
        places = range(start, end)
        found = Logprobs([-float(place) for place in places], [[] for _ in places], [[] for _ in places])
        row = RequestOutput("r", ids[start:end], "stop" if end == len(ids) else None, logprobs=found)
        piece = sample.take(row, 0)
        events += items.feed(piece.text, piece.logprobs)
    events += items.finish(cut=cut)
    return items.output(), events


def without_ids(items: list[dict[str, Any]]) -> Any:
    return json.loads(re.sub("call_[0-9a-f]{32}", "call", json.dumps(items)))


@settings(max_examples=80, deadline=None)
@given(kind=st.sampled_from(KINDS), text=answers, cuts=st.lists(st.integers(0, 400), max_size=40))
def test_the_items_do_not_depend_on_the_cuts(kind: str, text: str, cuts: list[int]) -> None:
    for logprobs in (True, False):
        whole, _ = answered(kind, text, logprobs=logprobs)
        cut, _ = answered(kind, text, cuts, logprobs=logprobs)
        assert without_ids(cut) == without_ids(whole)


@settings(max_examples=80, deadline=None)
@given(kind=st.sampled_from(KINDS), text=answers, cuts=st.lists(st.integers(0, 400), max_size=40))
def test_the_events_joined_are_the_items(kind: str, text: str, cuts: list[int]) -> None:
    output, events = answered(kind, text, cuts)
    joined: list[dict[str, Any]] = []
    for event in events:
        assert event["output_index"] == len(joined) - (event["type"] != "response.output_item.added")
        match event["type"].removeprefix("response."):
            case "output_item.added":
                joined.append(event["item"])
                assert event["item"]["status"] == "in_progress"
            case "content_part.added":
                assert joined[-1]["content"] == []
                joined[-1]["content"].append(event["part"])
            case "output_text.delta":
                assert event["delta"] or event["logprobs"]
                joined[-1]["content"][0]["text"] += event["delta"]
                joined[-1]["content"][0]["logprobs"] += event["logprobs"]
            case "reasoning_text.delta":
                assert event["delta"]
                joined[-1]["content"][0]["text"] += event["delta"]
            case "function_call_arguments.delta":
                assert event["delta"]
                joined[-1]["arguments"] += event["delta"]
            case "function_call_arguments.done":
                assert joined[-1]["arguments"] == event["arguments"]
            case "output_text.done" | "reasoning_text.done":
                assert joined[-1]["content"][0]["text"] == event["text"]
            case "content_part.done":
                assert joined[-1]["content"] == [event["part"]]
            case "output_item.done":
                assert event["item"] == {**joined[-1], "status": event["item"]["status"]}
                joined[-1] = event["item"]
            case other:
                raise AssertionError(other)
    assert joined == output
    assert joined
    assert all(item["status"] == "completed" or item["type"] == "function_call" for item in joined)


@settings(max_examples=80, deadline=None)
@given(kind=st.sampled_from(KINDS), text=answers, cuts=st.lists(st.integers(0, 400), max_size=40))
def test_the_tokens_of_a_message_spell_its_text(kind: str, text: str, cuts: list[int]) -> None:
    output, _ = answered(kind, text, cuts)
    for item in output:
        if item["type"] == "message":
            part = item["content"][0]
            spelled = bytes(token["token"] for token in part["logprobs"])
            assert spelled.decode() == part["text"]
            assert [token["logprob"] for token in part["logprobs"]] == sorted(
                (token["logprob"] for token in part["logprobs"]), reverse=True
            )


@pytest.mark.parametrize(
    ("kind", "text", "kinds"),
    [
        ("plain", "", ["message"]),
        ("opened", "Hm.", ["reasoning"]),
        ("opened", "</think>", ["message"]),
        ("thoughts", f"<think>a</think>b{CALL}c{CALL}{CALL}", ["reasoning", "message", "function_call", "message"]),
        ("tools", CALL + CALL, ["function_call", "function_call"]),
    ],
)
def test_which_items_there_are(kind: str, text: str, kinds: list[str]) -> None:
    output, _ = answered(kind, text)
    assert [item["type"] for item in output][: len(kinds)] == kinds
    assert len({item["id"] for item in output}) == len(output)


def test_what_a_cut_answer_leaves_open() -> None:
    def statuses(text: str) -> list[str]:
        return [item["status"] for item in answered("tools", text, cut=True)[0]]

    assert statuses("some te") == ["incomplete"]
    assert statuses(f"x{CALL}") == ["completed", "completed"]
    assert statuses(f"x{CALL[:50]}") == ["completed", "incomplete"]
    assert [item["status"] for item in answered("tools", CALL[:50])[0]] == ["incomplete"]  # its arguments break off
