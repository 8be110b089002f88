"""A sample's text and log probabilities are the same however the engine's rows are cut."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from app.sample_text import SampleText, TokenLogprob
from engine.core.outputs import Logprobs, RequestOutput
from engine.core.sampling_params import SamplingParams
from engine.vocab import Vocab

END = 256


class Bytes:
    """A vocabulary whose token ids are bytes; the last one ends an answer."""

    eos_token_ids = (END,)

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == END else bytes([token_id])


def sample(stop: Sequence[str] = (), **changes: Any) -> SampleText:
    include = changes.pop("include_stop", False)
    return SampleText(cast(Vocab, Bytes()), SamplingParams(**changes), stop, include_stop=include)


def rows(ids: list[int], at: Sequence[int], reason: str = "stop") -> list[RequestOutput]:
    bounds = [0, *sorted({place % len(ids) for place in at} - {0}), len(ids)]
    cut = [ids[a:b] for a, b in itertools.pairwise(bounds)]
    starts = bounds[:-1]
    return [
        RequestOutput("r", part, reason if part is cut[-1] else None, logprobs=logprobs_from(start, len(part)))
        for start, part in zip(starts, cut, strict=True)
    ]


def logprobs_from(start: int, count: int) -> Logprobs:
    places = range(start, start + count)
    return Logprobs([-float(place) for place in places], [[] for _ in places], [[] for _ in places])


def run(one: SampleText, given_rows: Sequence[RequestOutput]) -> tuple[str, list[TokenLogprob]]:
    text, tokens = "", []
    for row in given_rows:
        piece = one.take(row, 0)
        text += piece.text
        tokens += piece.logprobs
    return text, tokens


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("aéb🦊 ", min_size=1, max_size=12),
    stop=st.lists(st.text("aéb🦊 ", min_size=1, max_size=3), max_size=2),
    at=st.lists(st.integers(0, 60), max_size=8),
    include=st.booleans(),
    min_tokens=st.integers(0, 6),
)
def test_any_cut_is_the_same(text: str, stop: list[str], at: list[int], include: bool, min_tokens: int) -> None:
    ids = [*text.encode(), END]
    wishes: dict[str, Any] = {"include_stop": include, "min_tokens": min_tokens, "logprobs": 0}
    whole, cut = sample(stop, **wishes), sample(stop, **wishes)
    assert run(whole, rows(ids, [])) == run(cut, rows(ids, at))
    assert (whole.finish_reason, whole.num_tokens, whole.stopped) == (cut.finish_reason, cut.num_tokens, cut.stopped)


@settings(max_examples=100, deadline=None)
@given(text=st.text("aéb🦊 ", min_size=1, max_size=12), stop=st.text("aé🦊", min_size=1, max_size=2))
def test_logprobs_are_of_the_tokens_that_the_text_is_made_of(text: str, stop: str) -> None:
    found, tokens = run(sample([stop], logprobs=0), rows([*text.encode(), END], range(60)))
    assert found == text.partition(stop)[0]
    spelled = b"".join(Bytes().token_bytes(each.token_id) for each in tokens)
    assert spelled.decode(errors="replace").startswith(found)
    assert all(each.offset < len(found) for each in tokens)


def test_the_end_token_counts_and_has_no_logprob() -> None:
    one = sample(logprobs=0)
    text, tokens = run(one, rows([*b"ab", END], []))
    assert (text, len(tokens), one.num_tokens, one.finish_reason) == ("ab", 2, 3, "stop")


def test_rows_after_a_stop_string_change_nothing() -> None:
    one = sample(["b"], logprobs=0)
    assert run(one, rows(list(b"abcd"), range(9), "length"))[0] == "a"
    assert (one.num_tokens, one.finish_reason, len(one.arrivals)) == (2, "stop", 2)
