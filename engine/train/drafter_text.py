"""The text that a drafter is trained on: shards of conversations that the model wrote, made and read back.

Owns the engine that writes, the shards' files and what is cut as endless repetition. Knows no drafter. Invariant: a
shard is complete or not there; shard `n` holds the same stories whenever and in however many stretches it is made.
What was written of unfinished shards when the work was stopped lies in `unfinished.json`, answer by answer, and is told
to the scripts again, so that the end of a stretch costs no more than the answers that were being written.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.checkpoint import read_checkpoint
from engine.config import LoadOptions
from engine.core.outputs import RequestOutput
from engine.core.request import FinishReason
from engine.engine import Engine
from engine.loading import load_engine
from engine.train.drafter_stories import ANSWER, Ask, Conversation, Script, Storyteller, Written
from engine.train.refusal import Refusal
from engine.vocab import load_vocab

STORIES_PER_SHARD = 128
HELD_OUT = 16  # one story in so many is measured with, never trained on
_REQUESTS_AT_ONCE = 64
_MOST_UNTOLD = 100  # stories in a row without room for a question
UNFINISHED = "unfinished.json"
_GRAM = 16  # tokens that are alike for a repetition to count
_REPEATED = 48  # tokens in a row that repeat before an answer is cut


@dataclass(frozen=True, slots=True)
class TextWish:
    """What to write: `tokens` of answers by `model` from `seed` on. fingerprint: of the model's weights. texts: the
    operator's own."""

    model: Path
    fingerprint: str
    folder: Path
    tokens: int
    seed: int = 0
    texts: tuple[str, ...] = ()
    longest: int = 1024
    answer_tokens: int = 384
    threads: int = 1

    @property
    def recipe(self) -> dict[str, int | str]:
        """What shards must agree in to belong together."""
        digest = hashlib.blake2b("\n\n".join(self.texts).encode(), digest_size=8).hexdigest()
        return {
            "model": self.fingerprint,
            "seed": self.seed,
            "texts": digest,
            "longest": self.longest,
            "answer_tokens": self.answer_tokens,
        }


@dataclass(frozen=True, slots=True)
class Shard:
    """Conversations end to end. token_ids int32 [N]; kinds uint8 [N]; lengths and stories int32 [C]."""

    token_ids: Tensor
    kinds: Tensor
    lengths: Tensor
    stories: Tensor

    @property
    def held_out(self) -> Tensor:
        """bool [C]: the conversations to measure with."""
        return self.stories % HELD_OUT == 0

    @property
    def num_answer_tokens(self) -> int:
        """Tokens of answers."""
        return int((self.kinds >= ANSWER).sum())

    def part(self, rows: Sequence[int]) -> Shard:
        """Some of its conversations."""
        ends = self.lengths.cumsum(0).tolist()
        spans = [slice(ends[row] - int(self.lengths[row]), ends[row]) for row in rows]
        picked = torch.tensor(list(rows), dtype=torch.int64)
        ids, kinds = (torch.cat([part[span] for span in spans]) for part in (self.token_ids, self.kinds))
        return Shard(ids, kinds, self.lengths[picked], self.stories[picked])


def joined(shards: Sequence[Shard]) -> Shard:
    """Their conversations as one shard."""
    names = ("token_ids", "kinds", "lengths", "stories")
    return Shard(**{name: torch.cat([getattr(shard, name) for shard in shards]) for name in names})


def shard_file(folder: Path, number: int) -> Path:
    """Where shard `number` is."""
    return folder / f"text-{number:05}.safetensors"


def read_shard(path: Path) -> Shard:
    """A shard from its file."""
    with safe_open(str(path), framework="pt") as stored:
        return Shard(**{name: stored.get_tensor(name) for name in ("token_ids", "kinds", "lengths", "stories")})


def answer_tokens_of(path: Path) -> int:
    """How many tokens of answers a shard's file says it holds."""
    with safe_open(str(path), framework="pt") as stored:
        return int(stored.metadata()["answer_tokens"])


def shards_in(folder: Path) -> list[Path]:
    """The finished shards from the first on, without a gap."""
    found: list[Path] = []
    while (path := shard_file(folder, len(found))).is_file():
        found.append(path)
    return found


def write_text(wish: TextWish, report: Callable[[int, int], None]) -> list[Path]:
    """Writes shards until they hold as many tokens as wanted; returns their files. What is there is kept.

    report(tokens written, tokens wanted) is called after every step, and may raise: every answer that was complete is
    kept. Refusal for text of another model or recipe that lies in the folder.
    """
    wish.folder.mkdir(parents=True, exist_ok=True)
    for path in shards_in(wish.folder):
        with safe_open(str(path), framework="pt") as stored:
            _check_recipe(path, json.loads(stored.metadata()["recipe"]), wish)
    replies = _read_unfinished(wish)
    done = sum(answer_tokens_of(path) for path in shards_in(wish.folder))
    if done < wish.tokens:
        context = min(wish.longest, read_checkpoint(wish.model).config.longest_context)
        options = LoadOptions(
            max_num_seqs=_REQUESTS_AT_ONCE, max_model_len=context, num_threads=wish.threads, speculation="off"
        )
        loaded = load_engine(wish.model, options, lambda stage, done, total, message: report(0, wish.tokens))
        teller = Storyteller(load_vocab(wish.model), wish.texts, wish.seed, context, wish.answer_tokens)
        try:
            _Writer(loaded.engine, teller, wish, done, replies, report).write()
        finally:
            del loaded
            gc.collect()
            torch.set_num_threads(wish.threads)  # a loaded engine leaves torch one
    return shards_in(wish.folder)


def _check_recipe(path: Path, found: Mapping[str, int | str], wish: TextWish) -> None:
    if "model" not in found:
        raise Refusal(
            f"{path}: does not say which weights wrote it, since an earlier version of Pizarra made it; choose another "
            "output, or remove the folder"
        )
    differing = [name for name, value in wish.recipe.items() if found.get(name) != value]
    if differing:
        what = ", ".join(f"{name} {found.get(name)!r}" for name in differing)
        raise Refusal(f"{path}: was written with {what}; ask for the same, choose another output, or remove the folder")


def _read_unfinished(wish: TextWish) -> dict[int, list[Written]]:
    """Story -> what was written for it, of shards that were not finished."""
    path = wish.folder / UNFINISHED
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        recipe = dict(found["recipe"])
        replies = {
            int(story): [Written(tuple(ids), bool(ended)) for ids, ended in told]
            for story, told in found["stories"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refusal(f"{path}: cannot be read ({error}); remove the file, and its answers are written anew") from error
    _check_recipe(path, recipe, wish)
    return replies


@dataclass(slots=True)
class _Running:
    """A script, what it asked for, and what was written of that. seen: runs of _GRAM tokens of the answer."""

    story: int
    script: Script
    ask: Ask
    token_ids: list[int] = field(default_factory=list)
    seen: set[tuple[int, ...]] = field(default_factory=set)
    repeated: int = 0


class _Writer:
    """Runs the scripts, as many at once as the engine has room for."""

    def __init__(
        self,
        engine: Engine,
        teller: Storyteller,
        wish: TextWish,
        done: int,
        replies: dict[int, list[Written]],
        report: Callable[[int, int], None],
    ) -> None:
        self._engine, self._teller, self._wish, self._report = engine, teller, wish, report
        self._replies = replies  # story -> all that was written for it, until its shard is saved
        self._done, self._pending = done, 0  # tokens of answers in shards, and in finished stories of others
        self._next = len(shards_in(wish.folder)) * STORIES_PER_SHARD
        self._running: dict[str, _Running] = {}
        self._untold = 0  # stories in a row that had no room
        self._told: dict[int, dict[int, list[Conversation]]] = {}  # shard -> story -> its conversations

    def write(self) -> None:
        """Until enough is written."""
        try:
            while self._done < self._wish.tokens:
                while len(self._running) < _REQUESTS_AT_ONCE:
                    self._begin()
                for row in self._engine.step():
                    self._take(row)
                self._report(min(self._done + self._pending, self._wish.tokens), self._wish.tokens)
        finally:
            self._save_unfinished()

    def _save_unfinished(self) -> None:
        first = len(shards_in(self._wish.folder)) * STORIES_PER_SHARD
        stories = {
            story: [(one.token_ids, one.ended) for one in told]
            for story, told in self._replies.items()
            if story >= first and told
        }
        writing = self._wish.folder / f"{UNFINISHED}.tmp"
        writing.write_text(json.dumps({"recipe": self._wish.recipe, "stories": stories}), encoding="utf-8")
        writing.replace(self._wish.folder / UNFINISHED)

    def _begin(self) -> None:
        number, self._next = self._next, self._next + 1
        script = self._teller.script(number)
        known = self._replies.setdefault(number, [])
        try:
            ask = next(script)
            for written in known:
                ask = script.send(written)
        except StopIteration as end:  # no room for a question, or told to its end in an earlier stretch
            self._keep(number, end.value)
            self._untold += not known
            if self._untold > _MOST_UNTOLD:
                raise Refusal(
                    f"conversations of {self._wish.longest} tokens are too short for this model's chat template and an "
                    "answer; ask for longer ones"
                ) from None
            return
        self._untold = 0
        self._send(_Running(number, script, ask))

    def _send(self, one: _Running) -> None:
        request_id = str(one.story)
        refused = self._engine.add_request(request_id, list(one.ask.prompt), one.ask.sampling)
        if refused is not None:
            raise Refusal(f"the model cannot write what its drafter is to learn from: {refused.error}")
        self._running[request_id] = one

    def _take(self, row: RequestOutput) -> None:
        if row.error is not None:
            raise Refusal(f"the model failed at writing what its drafter is to learn from: {row.error}")
        one = self._running[row.request_id]
        for token_id in row.token_ids:
            self._note(one, token_id)
        if row.finish_reason is not None:
            self._go_on(one, Written(tuple(one.token_ids), row.finish_reason == FinishReason.STOP))
        elif one.ask.answer and one.repeated >= _REPEATED:
            self._engine.abort_request(row.request_id)
            self._go_on(one, Written(tuple(one.token_ids[: -_REPEATED + _GRAM]), ended=False))

    def _note(self, one: _Running, token_id: int) -> None:
        one.token_ids.append(token_id)
        gram = tuple(one.token_ids[-_GRAM:])
        if len(gram) == _GRAM:
            one.repeated = one.repeated + 1 if gram in one.seen else 0
            one.seen.add(gram)

    def _go_on(self, one: _Running, written: Written) -> None:
        """Hands the script what was written; it asks for more, or has told its story."""
        del self._running[str(one.story)]
        self._replies[one.story].append(written)
        try:
            ask = one.script.send(written)
        except StopIteration as end:
            self._keep(one.story, end.value)
            return
        self._send(_Running(one.story, one.script, ask))

    def _keep(self, story: int, talks: list[Conversation]) -> None:
        shard = story // STORIES_PER_SHARD
        self._told.setdefault(shard, {})[story] = talks
        self._pending += _count(talks)
        first = len(shards_in(self._wish.folder))
        while len(self._told.get(first, {})) == STORIES_PER_SHARD:
            told = self._told.pop(first)
            self._pending -= sum(_count(talks) for talks in told.values())
            self._done += _save(shard_file(self._wish.folder, first), told, self._wish)
            for number in told:
                del self._replies[number]
            first += 1


def _count(talks: Sequence[Conversation]) -> int:
    return sum(kind >= ANSWER for talk in talks for kind in talk.kinds)


def _save(path: Path, told: Mapping[int, Sequence[Conversation]], wish: TextWish) -> int:
    """Writes a shard, each conversation once. Returns its tokens of answers."""
    unique = {tuple(talk.token_ids): (story, talk) for story in sorted(told) for talk in told[story]}
    talks = list(unique.values())
    token_ids = torch.tensor([token for _, talk in talks for token in talk.token_ids], dtype=torch.int32)
    kinds = torch.tensor([kind for _, talk in talks for kind in talk.kinds], dtype=torch.uint8)
    count = int((kinds >= ANSWER).sum())
    tensors = {
        "token_ids": token_ids,
        "kinds": kinds,
        "lengths": torch.tensor([len(talk.token_ids) for _, talk in talks], dtype=torch.int32),
        "stories": torch.tensor([story for story, _ in talks], dtype=torch.int32),
    }
    writing = path.with_suffix(".tmp")
    save_file(tensors, writing, {"answer_tokens": str(count), "recipe": json.dumps(wish.recipe)})
    writing.replace(path)
    return count
