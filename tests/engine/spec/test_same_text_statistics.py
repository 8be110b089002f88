"""The verifier and whole engines under the true noise: what they emit is distributed as plain decoding's tokens are.

First the engine's own `Verifier` on a toy target, its rows built as the runner builds them: penalties, grammars and bad
words see the drafts before a row, drafts are sampled, and several turns follow each other. Chi-square against the exact
joint law of two tokens, Holm's correction at 1e-3, fixed seeds; a caller's mistakes must be found. Then engines of a
tiny checkpoint, every proposer, rule `rejection`: two samples, with drafts and without, of whole answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config import LoadOptions
from engine.core.sampling_params import Guided, SamplingParams
from engine.core.speculation import Draft, SpeculationParams
from engine.core.step import ScheduledRequest
from engine.engine import Engine
from engine.loading import load_engine
from engine.runner.input_batch import _sampling_rows
from engine.sample.filters import filter_rows, is_filtered
from engine.sample.processors import adjust
from engine.sample.row import SamplingRow
from engine.sample.sampler import Sampler
from engine.sample.verifier import Verifier
from engine.spec import PROPOSERS
from engine.spec.controller import Candidate
from kernels.noise import Stream
from kernels.registry import load_ops
from tests.engine.spec.same_text_drafters import drafters_of
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint
from tests.kernels.frequencies import chi_square_p, holm, two_sample_p

OPS = load_ops(["cpu_ops"], torch.float32, torch.device("cpu"), num_threads=2)[0]
REFERENCE = load_ops([], torch.float64, torch.device("cpu"), num_threads=1)[0]
SIZE, NUM_DRAFTS, LEVEL = 6, 2, 1e-3
PROMPT = [2, 1, 3, 2, 1]
NUMBER, CHUNK = 6000, 1000
WISHES: dict[str, dict[str, Any]] = {
    "filters": {"temperature": 0.7, "top_p": 0.8},
    "penalties": {"presence_penalty": 0.9, "frequency_penalty": 1.2, "repetition_penalty": 1.3},
    "dry and bad words": {"dry_multiplier": 1.5, "dry_allowed_length": 1, "bad_words": ((1, 2), (4, 4)), "top_k": 5},
    "grammar": {"temperature": 1.3},
}
Counts = Counter[tuple[int, ...]]
Change = Callable[[list[SamplingRow]], list[SamplingRow]]


def mask(before: Sequence[int]) -> bytes:
    """A grammar: never the same token twice in a row."""
    return bytes([0b111111 & ~(1 << before[-1])])


class Toy:
    """A target and a drafter whose next token depends on the last one, behind one kind of processors."""

    def __init__(self, name: str) -> None:
        generator = torch.Generator().manual_seed(len(name))
        self.name, self.sampling = name, SamplingParams(**WISHES[name])
        self.logits = torch.randn(SIZE, SIZE, generator=generator) * 1.2
        own = 0.6 * self.logits + 0.6 * torch.randn(SIZE, SIZE, generator=generator)
        own[:, 5] = -torch.inf  # the drafter does not know this token
        self.draft_scores = own

    def allowed(self, before: Sequence[int]) -> bytes:
        return mask(before) if self.name == "grammar" else b""

    def law(self, before: Sequence[int]) -> Tensor:
        """What plain decoding draws from behind the prompt and `before`, fp64 [V]."""
        text = [*PROMPT, *before]
        row = SamplingRow(
            self.sampling, 0, len(text), 0, len(PROMPT), text if self.sampling.needs_token_ids else (),
            allowed=self.allowed(text),
        )  # fmt: skip
        scores = self.logits[text[-1]].double().unsqueeze(0)
        adjust(scores, {0: row})
        if is_filtered(self.sampling):
            filter_rows(scores, scores, {0: row}, REFERENCE)
        return scores[0].softmax(0)


class Decoder:
    """Requests of one toy through the real verifier, with drafts in every turn.

    change: a mistake in the rows. cuts: drafts are cut at the first one that the grammar does not allow. Under `match`
    that is right; under `rejection` whether a draft is verified may not depend on the draft itself.
    """

    def __init__(
        self,
        toy: Toy,
        rule: str,
        change: Change = lambda rows: rows,
        *,
        tells_scores: bool = True,
        cuts: bool | None = None,
    ) -> None:
        self.toy, self.rule, self.change = toy, rule, change
        self.cuts = rule == "match" if cuts is None else cuts
        self.told: dict[str, Tensor] = {}
        rows = CHUNK * (NUM_DRAFTS + 1)
        scores = self.told.get if tells_scores else {}.get
        self.verifier = Verifier(OPS, Sampler(OPS, torch.empty(rows, SIZE)), lambda share: scores(share.request_id))

    def tokens(self, first_seed: int) -> list[list[int]]:
        """Two tokens or more of each of CHUNK requests."""
        texts: list[list[int]] = [[] for _ in range(CHUNK)]
        while left := [index for index, text in enumerate(texts) if len(text) < 2]:
            self._turn({index: texts[index] for index in left}, first_seed)
        return texts

    def _turn(self, texts: dict[int, list[int]], first_seed: int) -> None:
        drafts = self._drafts(texts, first_seed)
        shares, rows, seen = [], [], []
        for index, text in texts.items():
            whole, own = [*PROMPT, *text], drafts[index]
            share = ScheduledRequest(
                f"{index}", False, (whole[-1], *own), len(whole) - 1, ((),), True, self.toy.sampling,
                first_seed + index, len(PROMPT), num_drafts=len(own), rule=self.rule,
                allowed=tuple(self.toy.allowed([*whole, *own[:row]]) for row in range(len(own) + 1))
                if self.toy.name == "grammar" else (),
            )  # fmt: skip
            shares.append(share)
            rows += self.change(_sampling_rows(share, [*whole, *own]))
            seen += [whole[-1], *own]
            self.told[share.request_id] = self.toy.draft_scores[seen[-1 - len(own) : -1]]
        verified = self.verifier.verify(self.toy.logits[torch.tensor(seen)], shares, rows)
        assert not verified.faults
        for share in shares:
            texts[int(share.request_id)].extend(verified.token_ids[share.request_id])

    def _drafts(self, texts: dict[int, list[int]], first_seed: int) -> dict[int, list[int]]:
        """Sampled ones."""
        stream = Stream.TARGET if self.rule == "match" else Stream.DRAFT
        last = torch.tensor([[*PROMPT, *text][-1] for text in texts.values()])
        columns = []
        for step in range(NUM_DRAFTS):
            addresses = torch.tensor(
                [[first_seed + i, len(PROMPT) + len(text) + step, 0, stream] for i, text in texts.items()]
            )
            drawn = torch.empty(len(texts), dtype=torch.int64)
            OPS.draw(drawn, self.toy.draft_scores[last], addresses)
            columns.append(drawn)
            last = drawn
        found = {}
        for index, own in zip(texts, torch.stack(columns, 1).tolist(), strict=True):
            before = [*PROMPT, *texts[index]]
            while self.cuts and self.toy.name == "grammar" and _breaks(before, own):
                own = own[:-1]
            found[index] = own
        return found


def _breaks(before: list[int], own: list[int]) -> bool:
    """Whether one of the drafts is the token before it, which the grammar forbids."""
    text = [before[-1], *own]
    return any(left == right for left, right in pairwise(text))


def p_values(toy: Toy, decoder: Decoder, number: int = NUMBER) -> dict[str, float]:
    """Of the first token, and of the first two."""
    texts = [text for first in range(0, number, CHUNK) for text in decoder.tokens(10_000 + first)]
    first = toy.law([])
    both = torch.stack([first[token] * toy.law([token]) for token in range(SIZE)])
    code = torch.tensor([text[0] * SIZE + text[1] for text in texts])
    counts = torch.bincount(code, minlength=SIZE * SIZE)
    return {
        "first": chi_square_p(counts.view(SIZE, SIZE).sum(1), first),
        "first two": chi_square_p(counts, both.flatten()),
    }


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_the_verifier_emits_what_plain_decoding_draws(rule: str) -> None:
    found = {}
    for name in WISHES:
        toy = Toy(name)
        found |= {f"{name}: {place}": p for place, p in p_values(toy, Decoder(toy, rule)).items()}
    assert holm(found, LEVEL) == [], found


def without_drafts(rows: list[SamplingRow]) -> list[SamplingRow]:
    return [replace(row, token_ids=rows[0].token_ids) for row in rows]


def first_mask(rows: list[SamplingRow]) -> list[SamplingRow]:
    return [replace(row, allowed=rows[0].allowed) for row in rows]


def no_filter(rows: list[SamplingRow]) -> list[SamplingRow]:
    return [rows[0], *(replace(row, sampling=replace(row.sampling, temperature=1.0, top_p=1.0)) for row in rows[1:])]


def one_position(rows: list[SamplingRow]) -> list[SamplingRow]:
    return [replace(row, position=rows[0].position) for row in rows]


@pytest.mark.parametrize(
    ("name", "rule", "change"),
    [
        ("penalties", "match", without_drafts),
        ("penalties", "rejection", without_drafts),
        ("grammar", "match", first_mask),
        ("filters", "match", no_filter),
        ("filters", "rejection", no_filter),
        ("filters", "match", one_position),
    ],
)
def test_a_mistake_in_the_rows_is_found(name: str, rule: str, change: Change) -> None:
    toy = Toy(name)
    assert holm(p_values(toy, Decoder(toy, rule, change), NUMBER), LEVEL) != []


def test_a_sampled_draft_may_be_taken_for_a_certain_one() -> None:
    """Whoever chose it: sum over d of q(d) p is p. The reverse, a certain draft with q of a softmax, is a mistake."""
    toy = Toy("penalties")
    assert holm(p_values(toy, Decoder(toy, "rejection", tells_scores=False), NUMBER), LEVEL) == []
    toy = Toy("grammar")
    assert holm(p_values(toy, Decoder(toy, "rejection", tells_scores=False, cuts=True), NUMBER), LEVEL) == []


def test_rejection_of_drafts_that_were_cut_for_what_they_are_is_found() -> None:
    toy = Toy("grammar")
    assert holm(p_values(toy, Decoder(toy, "rejection", cuts=True), NUMBER), LEVEL) != []
    assert holm(p_values(toy, Decoder(toy, "match", cuts=True), NUMBER), LEVEL) == []


SEQS, SAMPLES = 64, 1536
SAMPLING = SamplingParams(temperature=1.0, top_k=2, max_tokens=6, ignore_eos=True)
GRAMMAR = Guided("regex", "[^aeiou]{1,40}")
BASE = [20 + place % 7 for place in range(9)]


def answers(
    engine: Engine, prompt: list[int], sampling: SamplingParams, wish: SpeculationParams, seeds: range
) -> Counts:
    """How often each answer came."""
    found: dict[str, list[int]] = {str(seed): [] for seed in seeds}
    for first in range(seeds.start, seeds.stop, SEQS):
        for seed in range(first, min(first + SEQS, seeds.stop)):
            one = replace(sampling, seed=seed)
            assert engine.add_request(str(seed), prompt, one, speculation=wish) is None
        while engine.has_requests():
            for row in engine.step():
                assert row.error is None, row.error
                found[row.request_id] += row.token_ids
    return Counter(tuple(tokens) for tokens in found.values())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[str, str], Path]]:
    folder = tmp_path_factory.mktemp("rejection")
    path = tiny_llama_checkpoint(folder / "tiny")
    return path, drafters_of({"tiny": path}, folder)


def trim_by_confidence(candidates: Sequence[Candidate], drafts: Sequence[Draft], others: int) -> list[int]:
    """A controller that has unlikely drafts not verified: those of `rejection` must not show it which these are."""
    counts = []
    for draft in drafts:
        chances = [*draft.confidence, *[1.0] * (len(draft.token_ids) - len(draft.confidence))]
        counts.append(next((place for place, chance in enumerate(chances) if chance < 0.5), len(chances)))
    return counts


CASES = [
    *((proposer, "free") for proposer in PROPOSERS),
    ("draft_model", "cut"),
    ("draft_model", "grammar"),
    ("hybrid", "grammar"),
]


@pytest.mark.parametrize(("proposer", "kind"), CASES)
def test_engines_with_rejection_and_without_say_the_same_things_as_often(
    proposer: str,
    kind: str,
    checkpoint: tuple[Path, dict[tuple[str, str], Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, drafters = checkpoint
    options = LoadOptions(
        dtype="float32", max_model_len=160, max_num_seqs=SEQS, kv_cache_memory_bytes=64 << 20, speculation=proposer,
        speculation_rule="rejection", num_speculative_tokens=3, drafter=str(drafters.get(("tiny", proposer), "")),
    )  # fmt: skip
    engine = load_engine(path, options, lambda stage, done, total, message: None).engine
    plainly = SpeculationParams(enabled=False)
    said = answers(engine, BASE, SAMPLING, plainly, range(16))
    prompt = [*BASE, *(token for text in said for token in text), *BASE]  # so that there is something to look up
    if kind == "cut":
        monkeypatch.setattr(engine.speculator.controller, "trim", trim_by_confidence)
    sampling = SAMPLING if kind != "grammar" else replace(SAMPLING, top_k=3, max_tokens=3, guided=GRAMMAR)
    plain = answers(engine, prompt, sampling, plainly, range(SAMPLES))
    wish = SpeculationParams(proposer=proposer, adaptive=False)
    drafted = answers(engine, prompt, sampling, wish, range(1_000_000, 1_000_000 + SAMPLES))
    assert engine.speculator.total.drafted > SAMPLES / 8, "hardly anything was drafted: nothing is proved"
    names = list(plain | drafted)
    p = two_sample_p(torch.tensor([plain[name] for name in names]), torch.tensor([drafted[name] for name in names]))
    assert p > LEVEL / len(CASES)
