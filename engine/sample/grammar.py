"""Guided decoding: a grammar's text becomes, off the step's path, a matcher that knows which tokens may come.

Owns the worker thread that compiles, a cache of what it compiled, and the matchers (xgrammar does the work of both,
arXiv 2411.15100). The vocabulary is read when the first grammar comes. Knows nothing of requests but their ids.
Invariant: a grammar that compiled here admits no answer outside it; what cannot be promised is refused, with the place.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from engine.core.sampling_params import Guided
from engine.sample.json_schema import SchemaFault, prepare_schema
from engine.sample.structural_tag import prepare_structural_tag

CACHE_SIZE = 64  # compiled grammars that are kept
WORD_BITS = 32
MAX_SPACES = 16  # between the parts of a JSON text: room to indent, but a model may not pad its answer for ever
SOURCE_PLACE = re.compile(r"^(\[[\d:]+\] )?\S+\.(cc|h):\d+: (Check failed: \(.*?\) is false: )?")
OBJECT_SCHEMA = '{"type": "object"}'


class GrammarError(ValueError):
    """A grammar that cannot be compiled, is not supported, or admits nothing. The message says what and where."""


class Matcher:
    """One answer's place in a compiled grammar: `engine.core.grammar.GrammarMatcher`."""

    def __init__(self, matcher: Any, num_words: int) -> None:
        self._matcher = matcher
        self._mask = torch.zeros(1, num_words, dtype=torch.int32)

    def allowed(self) -> bytes:
        """The tokens that may come next, a bit per token id."""
        self._mask.fill_(-1)  # xgrammar leaves it untouched where every token may come
        self._matcher.fill_next_token_bitmask(self._mask)
        return self._mask.numpy().tobytes()

    def allowed_along(self, token_ids: Sequence[int]) -> list[bytes]:
        """The masks before each of these tokens and behind the last, as if they came; see the protocol."""
        masks, taken = [self.allowed()], 0
        for token_id in token_ids:
            if not masks[-1][token_id // 8] >> token_id % 8 & 1:
                break  # to have it refused by xgrammar would put a line into the log each time
            self.accept(token_id)
            taken += 1
            if self.is_complete:
                break
            masks.append(self.allowed())
        if taken:
            self._matcher.rollback(taken)
        return masks

    def accept(self, token_id: int) -> None:
        """Moves on by a token. RuntimeError when the grammar does not allow it."""
        if not self._matcher.accept_token(token_id):
            raise RuntimeError(f"the grammar does not allow token {token_id} here, yet it was drawn")

    @property
    def is_complete(self) -> bool:
        """Whether the end token has been accepted."""
        return bool(self._matcher.is_terminated())


class CompiledGrammar:
    """A grammar over one vocabulary; every answer gets a matcher of its own."""

    def __init__(self, compiled: Any, num_words: int, has_end: bool) -> None:
        self._compiled, self._num_words, self._has_end = compiled, num_words, has_end

    def matcher(self) -> Matcher:
        """A matcher at the beginning."""
        import xgrammar

        state = xgrammar.GrammarMatcher(self._compiled, terminate_without_stop_token=not self._has_end)
        return Matcher(state, self._num_words)


Outcome = CompiledGrammar | GrammarError


class GrammarCompiler:
    """Compiles the grammars of one engine, one at a time, in a thread of its own.

    load_tokens: the bytes of every token. on_compiled is called from the thread when there is something to take.
    """

    def __init__(
        self, load_tokens: Callable[[], Sequence[bytes]], vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        self.on_compiled: Callable[[], None] = lambda: None
        self._load_tokens = load_tokens
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._compiler: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._cache: OrderedDict[Guided, Future[Outcome]] = OrderedDict()
        self._pending: deque[tuple[str, Future[Outcome]]] = deque()

    def submit(self, request_id: str, guided: Guided) -> None:
        """Has a request's grammar compiled, or found in the cache."""
        future = self._cache.get(guided)
        if future is None:
            future = self._cache[guided] = self._thread.submit(self._outcome, guided)
            if len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)
        self._cache.move_to_end(guided)
        self._pending.append((request_id, future))
        future.add_done_callback(lambda _: self.on_compiled())

    def has_compiled(self) -> bool:
        """Whether `take_compiled` has something to give."""
        return any(future.done() for _, future in self._pending)

    def take_compiled(self) -> Iterator[tuple[str, Outcome]]:
        """Request ids whose grammars are done, and what became of them."""
        for _ in range(len(self._pending)):
            request_id, future = self._pending.popleft()
            if future.done():
                yield request_id, future.result()
            else:
                self._pending.append((request_id, future))

    def _outcome(self, guided: Guided) -> Outcome:
        try:
            return self.compile(guided)
        except GrammarError as error:
            return error
        except Exception as error:  # a vocabulary that cannot be read must not cost the engine its thread
            return GrammarError(f"{type(error).__name__}: {error}")

    def compile(self, guided: Guided) -> CompiledGrammar:
        """Compiles here and now. Raises GrammarError."""
        compiler = self._ready_compiler()
        try:
            compiled = _compile(compiler, guided)
        except SchemaFault as error:
            raise GrammarError(f"{guided.kind}: {error}") from error
        except RuntimeError as error:
            raise GrammarError(f"{guided.kind}: {SOURCE_PLACE.sub('', str(error)).strip()}") from error
        grammar = CompiledGrammar(compiled, -(-self._vocab_size // WORD_BITS), bool(self._eos_token_ids))
        if not any(grammar.matcher().allowed()):
            raise GrammarError(f"{guided.kind}: no text satisfies it")
        return grammar

    def _ready_compiler(self) -> Any:
        """xgrammar's compiler for this vocabulary, made once."""
        if self._compiler is None:
            try:
                import xgrammar
            except ImportError as error:
                raise GrammarError("guided decoding needs the package xgrammar; pip install xgrammar") from error
            tokens = list(self._load_tokens())[: self._vocab_size]
            info = xgrammar.TokenizerInfo(
                tokens,
                vocab_type=xgrammar.VocabType.RAW,
                vocab_size=self._vocab_size,
                stop_token_ids=self._eos_token_ids,
            )
            self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        return self._compiler


def _compile(compiler: Any, guided: Guided) -> Any:
    """The compiled grammar. RuntimeError comes from xgrammar, SchemaFault and GrammarError from here."""
    match guided.kind:
        case "regex":
            return compiler.compile_regex(guided.text)
        case "ebnf":
            return compiler.compile_grammar(guided.text)
        case "choice":
            return compiler.compile_grammar(_choice_grammar(guided.text))
        case "structural_tag":
            prepared = prepare_structural_tag(guided.text, compiler.compile_regex, MAX_SPACES)
            return compiler.compile_structural_tag(prepared)
    text = guided.text if guided.kind == "json_schema" else OBJECT_SCHEMA
    prepared = prepare_schema(text, compiler.compile_regex)
    return compiler.compile_json_schema(prepared, strict_mode=False, any_whitespace=True, max_whitespace_cnt=MAX_SPACES)


def _choice_grammar(text: str) -> str:
    """EBNF for a JSON list of strings."""
    try:
        choices = json.loads(text)
    except json.JSONDecodeError as error:
        raise GrammarError(f"choice: not a JSON list of strings: {error}") from error
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise GrammarError("choice: not a JSON list of at least one string")
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
