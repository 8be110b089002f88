"""From a checked body to a generation that is ready to run: the part that all of /v1's dialects share.

Owns the order of the checks: the model, its template, its tools, room in its context, the grammar. Knows nothing of
answers' shapes; another dialect than OpenAI's translates its body to OpenAI's and comes here. Invariant: what is
returned has passed every check that can be made before the engine sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from app.dialects.answer_plan import (
    AnswerPlan,
    answer_plan,
    check_choice,
    messages_for_template,
    tools_for_template,
    unread_variables,
)
from app.dialects.openai_schemas import ChatCompletionBody, ChatFields, ChatMessage, CompletionBody, CompletionFields
from app.dialects.sampling import GrammarWish, body_sampling, grammar_wish
from app.dialects.speculation_usage import granted, ignored_wish
from app.engine_client import EngineGone
from app.engines import Engine
from app.generation import Generation, RequestOptions, engine_failed, engine_refusal, room_for_output
from app.request_bodies import GivenTexts
from app.services import Services

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for raw completion


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A chat's generation, not started, and how its answer is read. ignored: fields that mean nothing here."""

    generation: Generation
    plan: AnswerPlan
    ignored: list[str]


async def prepare_chat(parts: Services, body: ChatCompletionBody, *, clip: bool = False) -> PreparedChat:
    """The generation of a chat. Raises ApiError.

    clip: a max_tokens beyond the context's room is lowered to it, not refused (for dialects that require the field).
    """
    engine = parts.engines.serving(body.model)
    check_choice(body)
    prompt = await chat_prompt(engine, body.messages, body)
    limit = room_for_output(engine, len(prompt), body.max_tokens, clip=clip)
    plan = answer_plan(body, engine, prompt)
    given = GivenTexts(messages=lambda: [message.model_dump(exclude_none=True) for message in body.messages])
    generation = _generation(parts, engine, prompt, body, limit, plan.wish, "chat", given, plan.shown_specials)
    await _check_grammar(engine, plan.wish)
    return PreparedChat(generation, plan, unread_variables(body, engine) + ignored_wish(body.speculation, engine))


async def chat_prompt(engine: Engine, messages: Sequence[ChatMessage], body: ChatFields) -> list[int]:
    """The token ids of a chat's prompt. Raises ApiError."""
    return await engine.chat_prompt(
        messages_for_template(messages, engine, body),
        tools=tools_for_template(body, engine),
        add_generation_prompt=body.opens_answer,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs,
    )


async def prepare_completion(parts: Services, body: CompletionBody, given: str | list[int]) -> Generation:
    """The generation of a raw completion of one of the body's prompts. Raises ApiError."""
    engine = parts.engines.serving(body.model)
    if isinstance(given, str):
        prompt = await asyncio.to_thread(engine.vocab.encode, given, add_special_tokens=True)
    else:
        prompt = given
        engine.check_token_ids(prompt, "prompt")
    room = room_for_output(engine, len(prompt), body.max_tokens)
    limit = room if body.max_tokens is not None else min(room, COMPLETION_MAX_TOKENS)
    wish = grammar_wish(body)
    texts = GivenTexts(prompt=given if isinstance(given, str) else None)
    generation = _generation(parts, engine, prompt, body, limit, wish, "completion", texts)
    await _check_grammar(engine, wish)
    return generation


async def _check_grammar(engine: Engine, wish: GrammarWish | None) -> None:
    """Refuse a grammar that cannot be used before an answer begins: its status could not be changed then."""
    if wish is None:
        return
    try:
        fault = await engine.supervisor.client.grammar_fault(wish.guided)
    except EngineGone as error:
        raise engine_failed(error) from error
    if fault is not None:
        raise engine_refusal(fault, wish.field)


def _generation(
    parts: Services,
    engine: Engine,
    prompt: list[int],
    body: CompletionFields,
    max_tokens: int,
    wish: GrammarWish | None,
    source: str,
    given: GivenTexts,
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
        speculation=granted(body.speculation, engine),
        trace=body.trace is True,
        given=given,
    )
    sampling = body_sampling(body, engine.vocab, max_tokens, engine.sampling_defaults, wish)
    return parts.generations.prepare(engine, prompt, sampling, options=options, source=source)
