"""From a checked body to a generation that is ready to run: the part that all of /v1's dialects share.

Owns the order of the checks: the model, its template, its tools, room in its context, the grammar. Knows nothing of
answers' shapes; another dialect than OpenAI's translates its body to OpenAI's and comes here. Invariant: what is
returned has passed every check that can be made before the engine sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from app.answer_plan import AnswerPlan, answer_plan, messages_for_template, tools_for_template
from app.engines import Engine
from app.generation import Generation, RequestOptions, room_for_output
from app.openai_schemas import ChatCompletionBody, CompletionBody, CompletionFields
from app.sampling import GrammarWish, body_sampling, grammar_wish
from app.services import Services

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for raw completion


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A chat's generation, not started, and how its answer is read."""

    generation: Generation
    plan: AnswerPlan


async def prepare_chat(parts: Services, body: ChatCompletionBody, *, clip: bool = False) -> PreparedChat:
    """The generation of a chat. Raises ApiError.

    clip: a max_tokens beyond the context's room is lowered to it, not refused (for dialects that require the field).
    """
    engine = parts.engines.serving(body.model)
    messages = messages_for_template(body.messages, engine)
    tools = tools_for_template(body, engine)
    prompt = await engine.chat_prompt(messages, tools=tools, add_generation_prompt=body.add_generation_prompt)
    limit = room_for_output(engine, len(prompt), body.max_tokens, clip=clip)
    plan = answer_plan(body, engine, prompt)
    return PreparedChat(_generation(parts, engine, prompt, body, limit, plan.wish, "chat", plan.shown_specials), plan)


async def prepare_completion(parts: Services, body: CompletionBody) -> Generation:
    """The generation of a raw completion. Raises ApiError."""
    engine = parts.engines.serving(body.model)
    given = body.single_prompt
    if isinstance(given, str):
        prompt = await asyncio.to_thread(engine.vocab.encode, given, add_special_tokens=True)
    else:
        prompt = given
        engine.check_token_ids(prompt, "prompt")
    room = room_for_output(engine, len(prompt), body.max_tokens)
    limit = room if body.max_tokens is not None else min(room, COMPLETION_MAX_TOKENS)
    return _generation(parts, engine, prompt, body, limit, grammar_wish(body), "completion")


def _generation(
    parts: Services,
    engine: Engine,
    prompt: list[int],
    body: CompletionFields,
    max_tokens: int,
    wish: GrammarWish | None,
    source: str,
    shown_specials: Sequence[str] = (),
) -> Generation:
    options = RequestOptions(
        stop=body.stop_strings,
        include_stop=body.include_stop_str_in_output,
        n=body.num_samples,
        cache_salt=body.cache_salt or "",
        priority=body.priority,
        grammar_field=None if wish is None else wish.field,
        shown_specials=shown_specials,
    )
    sampling = body_sampling(body, engine.vocab, max_tokens, engine.sampling_defaults, wish)
    return parts.generations.prepare(engine, prompt, sampling, options=options, source=source)
