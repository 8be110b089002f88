"""Conversations that a model writes with itself, as scripts: each asks for what the model has to write next.

Owns the recipe: who begins, how answers are drawn, what follows. Knows no engine; the one who runs a script sends it
what was written. Invariant: a script's conversations depend on its seed and number and on what was written, nothing
else.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from engine.core.sampling_params import SamplingParams
from engine.train.drafter_tasks import CODE_TASKS, FOLLOW_UPS, OPENINGS, SYSTEM_PROMPTS, TASKS, fill, is_code
from engine.train.drafter_turns import Turns, turns_of
from engine.vocab import Vocab

GIVEN, BY_MODEL, ANSWER = 0, 1, 2  # kinds of tokens; an answer's kind is ANSWER + the index of how it was drawn
# how answers are drawn: (share, temperature, top-p); the second is what users get by default
DRAWS = ((0.40, 0.0, 1.0), (0.25, 0.2, 0.9), (0.15, 0.7, 1.0), (0.20, 1.0, 1.0))
GREEDY = 0  # its index
QUESTION = SamplingParams(temperature=1.0, top_p=0.95)
_QUESTION_TOKENS = 96
_SHARE_OF = {"opened": 0.35, "system": 0.3, "follow_up": 0.35, "own_follow_up": 0.5, "task": 0.5, "own_text": 0.5}
_MOST_TURNS = 3
_LONGEST_TEXT = 220  # tokens of a text that a task is about
_SHORTEST_TEXT = 24


@dataclass(frozen=True, slots=True)
class Ask:
    """What the model is to write. answer: whether it may be cut where it begins to repeat itself."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    answer: bool


@dataclass(frozen=True, slots=True)
class Written:
    """What it wrote. ended: it came to an end by itself."""

    token_ids: tuple[int, ...]
    ended: bool


@dataclass(slots=True)
class Conversation:
    """Token ids and their kinds, one for each."""

    token_ids: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)

    def add(self, token_ids: Sequence[int], kind: int) -> None:
        """Appends tokens of one kind."""
        self.token_ids.extend(token_ids)
        self.kinds.extend([kind] * len(token_ids))


Script = Generator[Ask, Written, list[Conversation]]


class Storyteller:
    """Makes scripts. texts: the operator's own, may be empty. longest: tokens of a conversation."""

    def __init__(self, vocab: Vocab, texts: Sequence[str], seed: int, longest: int, answer_tokens: int) -> None:
        self._vocab, self._texts, self._seed = vocab, texts, seed
        self._longest, self._answer_tokens = longest, answer_tokens
        self._question = replace(QUESTION, max_tokens=max(8, min(_QUESTION_TOKENS, longest // 8)))
        self._plain = turns_of(vocab)
        self._told = [turns_of(vocab, system) for system in SYSTEM_PROMPTS]
        self.has_template = self._plain.has_template

    def script(self, number: int) -> Script:
        """Story `number`: a conversation, and often a task over what was said in it."""
        rng = random.Random(f"{self._seed}/{number}")
        first = yield from self._conversation(rng, "")
        told = [first]
        text = self._text_of(first)
        if text and rng.random() < _SHARE_OF["task"]:
            told.append((yield from self._conversation(rng, self._task(rng, text))))
        return [one for one in told if any(kind >= ANSWER for kind in one.kinds)]

    def _conversation(self, rng: random.Random, question: str) -> Generator[Ask, Written, Conversation]:
        """One conversation; `question` empty: the model asks, or an operator's text does."""
        turns: Turns = rng.choice(self._told) if rng.random() < _SHARE_OF["system"] else self._plain
        talk = Conversation()
        talk.add(turns.opening, GIVEN)
        for turn in range(_MOST_TURNS):
            if turn:
                talk.add(turns.to_user[1:], GIVEN)  # its first token is the end that the model wrote
                question = rng.choice(FOLLOW_UPS) if rng.random() >= _SHARE_OF["own_follow_up"] else ""
            elif not question and self._texts and rng.random() < _SHARE_OF["own_text"]:
                question = self._own_question(rng)
            if not (yield from self._ask(rng, talk, question, opened=turn == 0)):
                break
            talk.add(turns.to_answer, GIVEN)
            ended = yield from self._answer(rng, talk, turns)
            if not ended or rng.random() >= _SHARE_OF["follow_up"]:
                break
        return talk

    def _ask(
        self, rng: random.Random, talk: Conversation, question: str, *, opened: bool
    ) -> Generator[Ask, Written, bool]:
        """The user's turn; False where there is no room for it and an answer."""
        if question:
            talk.add(self._vocab.encode(question, parse_special=False), GIVEN)
        else:
            if opened and rng.random() < _SHARE_OF["opened"]:
                talk.add(self._vocab.encode(rng.choice(OPENINGS)), GIVEN)
            if self._room(talk) < 2 * self._question.max_tokens:
                return False
            written = yield Ask(tuple(talk.token_ids), _seeded(self._question, rng), answer=False)
            talk.add(written.token_ids, BY_MODEL)
            if not written.token_ids:
                return False
        return self._room(talk) >= self._question.max_tokens

    def _answer(self, rng: random.Random, talk: Conversation, turns: Turns) -> Generator[Ask, Written, bool]:
        draw = rng.choices(range(len(DRAWS)), [share for share, _, _ in DRAWS])[0]
        _, temperature, top_p = DRAWS[draw]
        room = min(self._answer_tokens, self._room(talk))
        if room < min(self._answer_tokens, self._question.max_tokens):
            return False
        sampling = _seeded(SamplingParams(temperature=temperature, top_p=top_p, max_tokens=room), rng)
        written = yield Ask(tuple(talk.token_ids), sampling, answer=True)
        talk.add(written.token_ids, ANSWER + draw)
        if written.ended:
            talk.add(turns.to_user[:1], ANSWER + draw)
        return written.ended

    def _room(self, talk: Conversation) -> int:
        return self._longest - len(talk.token_ids) - 1

    def _task(self, rng: random.Random, text: str) -> str:
        return fill(rng.choice(CODE_TASKS if is_code(text) else TASKS), text)

    def _own_question(self, rng: random.Random) -> str:
        """One of the operator's texts, as it is or in a task."""
        ids = self._vocab.encode(rng.choice(self._texts), parse_special=False)
        text = self._vocab.decode(ids[: self._longest // 4])
        return text if rng.random() < _SHARE_OF["own_text"] else self._task(rng, text)

    def _text_of(self, talk: Conversation) -> str:
        """The first answer, or its beginning up to the end of a sentence."""
        start = next((at for at, kind in enumerate(talk.kinds) if kind >= ANSWER), len(talk.kinds))
        end = next((at for at in range(start, len(talk.kinds)) if talk.kinds[at] < ANSWER), len(talk.kinds))
        ids = talk.token_ids[start : min(end, start + _LONGEST_TEXT)]
        if len(ids) < _SHORTEST_TEXT:
            return ""
        text = self._vocab.decode(ids)
        cut = max(text.rfind(". "), text.rfind(".\n"), text.rfind("\n\n"))
        return text[: cut + 1] if cut > len(text) // 2 and end > start + _LONGEST_TEXT else text


def _seeded(sampling: SamplingParams, rng: random.Random) -> SamplingParams:
    return replace(sampling, seed=rng.getrandbits(48))
