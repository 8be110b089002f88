"""Whether an answer can be held to a grammar, and where it is wrong: what a page asks while somebody types.

Owns the way from an error's words to a place in the text. Knows nothing of grammars: the engine compiles them, as it
would for a request, and keeps what it compiled. Invariant: a place is given only where the error is about the text.
"""

from __future__ import annotations

import json
import re

from app.engine_client import EngineGone
from app.generation import engine_failed
from app.inspect_schemas import GrammarBody, GrammarVerdict
from app.loaded_engine import Engine
from engine.core.sampling_params import Guided

IN_EBNF = re.compile(r"at line (\d+), column (\d+)")
IN_REGEX = re.compile(r"Regex parsing error at position (\d+)")
IN_SCHEMA = re.compile(r"at (/\S*):")
OF_THE_TRANSLATION = re.compile(r"EBNF parser error at line \d+, column \d+: ")  # a regex becomes EBNF on the way


async def check_grammar(engine: Engine, body: GrammarBody) -> GrammarVerdict:
    """The verdict on one grammar. Raises ApiError where the engine ended."""
    fault = json_fault(body.text) if body.kind in ("json_schema", "choice") else None
    if fault is not None:
        return fault
    try:
        said = await engine.supervisor.client.grammar_fault(Guided(body.kind, body.text))
    except EngineGone as error:
        raise engine_failed(error) from error
    return GrammarVerdict(usable=True) if said is None else verdict(body.kind, body.text, said)


def json_fault(text: str) -> GrammarVerdict | None:
    """What is wrong with a text that should be JSON, or None."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return GrammarVerdict(usable=False, message=f"not JSON: {error.msg}", line=error.lineno, column=error.colno)
    except RecursionError:
        return GrammarVerdict(usable=False, message="nested too deeply")
    return None


def verdict(kind: str, text: str, said: str) -> GrammarVerdict:
    """The engine's words about an unusable grammar, with the place in its text where they name one."""
    message = said.removeprefix("guided: ").removeprefix(f"{kind}: ")
    line = column = path = None
    if kind == "ebnf" and (found := IN_EBNF.search(message)):
        line, column = int(found[1]), int(found[2])
    elif kind == "regex" and (found := IN_REGEX.search(message)):
        before = text[: int(found[1]) - 1]
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    elif kind == "regex":
        message = OF_THE_TRANSLATION.sub("", message)
    elif kind == "json_schema" and (found := IN_SCHEMA.match(message)):
        path, message = found[1], message[found.end() :].strip()
    return GrammarVerdict(usable=False, message=message, line=line, column=column, path=path)
