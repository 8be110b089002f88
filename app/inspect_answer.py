"""How tokens of an answer were drawn: each place is one more request of one token, whose sampler tells its chain.

Owns the way from a /v1 body and an answer to those requests and back. Knows nothing of how the chain works. They are
not written down as requests and count for no latency. Invariant: prompt, sampling and grammar are made by the code that
made them for the answer; however this ends, the engine is told to end what it was asked.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

from app.dialects.answer_plan import answer_plan
from app.dialects.logprobs import TokenSpelling
from app.dialects.openai_schemas import ChatCompletionBody, CompletionBody
from app.dialects.prepared import chat_prompt
from app.dialects.sampling import GrammarWish, body_sampling, grammar_wish
from app.engine_client import EngineGone
from app.errors import ApiError
from app.generation import engine_failed, engine_refusal
from app.inspect_schemas import InspectBody, Inspected, MovedToken, Place, RankedToken, Stage, Token
from app.loaded_engine import Engine
from engine.core.inspection import Inspection, InspectionWish
from engine.core.sampling_params import SamplingParams
from engine.core.speculation import SpeculationParams
from engine.protocol import AddRequest

PLAINLY = SpeculationParams(enabled=False)


async def inspect_answer(engine: Engine, body: InspectBody, max_waiting: int) -> Inspected:
    """The chain at each of the places. Raises ApiError."""
    request = body.request
    request.checked()
    if request.model not in (None, engine.model_id):
        detail = f"the request names the model {request.model!r}, and this engine serves {engine.model_id!r}"
        raise ApiError(400, detail, param="request.model", remedy="Ask the engine that answered", code="invalid_value")
    engine.check_token_ids(body.answer_token_ids, "answer_token_ids")
    prompt, wish = await _prompt(engine, request)
    _check_places(engine, body, len(prompt))
    limit = max(request.max_tokens or 0, len(body.answer_token_ids) + 1, request.min_tokens or 0)
    sampling = body_sampling(request, engine.vocab, limit, engine.sampling_defaults, wish)
    sampling = replace(sampling, logprobs=None, prompt_logprobs=None)
    fault = sampling.token_id_fault(engine.ready.vocab_size)
    if fault is not None:
        raise ApiError(400, str(fault), param=f"request.{fault.param}", code="invalid_value")
    engine.check_queue(max_waiting)
    looks = [_look(engine, body, prompt, sampling, wish, position) for position in body.positions]
    try:
        async with asyncio.TaskGroup() as tasks:
            started = [tasks.create_task(look) for look in looks]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    spelling = TokenSpelling(engine.vocab)
    places = [
        _place(spelling, body, position, task.result()) for position, task in zip(body.positions, started, strict=True)
    ]
    ready = engine.ready
    return Inspected(
        exactness=ready.exactness,
        exactness_reason=ready.exactness_reason,
        seeded=request.seed is not None or sampling.greedy,
        places=places,
    )


async def _prompt(engine: Engine, request: ChatCompletionBody | CompletionBody) -> tuple[list[int], GrammarWish | None]:
    """The prompt's ids and the grammar, as the answer had them."""
    if isinstance(request, ChatCompletionBody):
        prompt = await chat_prompt(engine, request.messages, request)
        return prompt, answer_plan(request, engine, prompt).wish
    if len(request.prompts) != 1:
        detail = f"{len(request.prompts)} prompts: an answer has one"
        raise ApiError(400, detail, param="request.prompt", remedy="Send the one it answers", code="invalid_value")
    [given] = request.prompts
    if isinstance(given, str):
        given = await asyncio.to_thread(engine.vocab.encode, given, add_special_tokens=True)
    engine.check_token_ids(given, "request.prompt")
    return given, grammar_wish(request)


def _check_places(engine: Engine, body: InspectBody, num_prompt: int) -> None:
    if num_prompt == 0:
        raise ApiError(400, "the prompt is empty: it has no tokens", param="request.prompt", code="empty_prompt")
    last, length = max(body.positions), len(body.answer_token_ids)
    if last > length:
        detail = f"position {last}: the answer has {length} tokens, so places go from 0 to {length}"
        raise ApiError(400, detail, param="positions", code="invalid_value")
    context = engine.ready.max_model_len
    if num_prompt + last >= context:
        detail = f"position {last} lies behind the context: {num_prompt} tokens of prompt, {context} in all"
        raise ApiError(400, detail, param="positions", code="context_length_exceeded")


async def _look(
    engine: Engine,
    body: InspectBody,
    prompt: list[int],
    sampling: SamplingParams,
    wish: GrammarWish | None,
    position: int,
) -> Inspection:
    """The chain at one place. Raises ApiError."""
    answer = body.answer_token_ids
    followed = answer[position] if position < len(answer) else None
    message = AddRequest(
        uuid.uuid4().hex,
        [*prompt, *answer[:position]],
        sampling,
        priority=body.request.priority,
        cache_salt=body.request.cache_salt or "",
        speculation=PLAINLY,
        inspect=InspectionWish(len(prompt), body.sample_index, followed, body.top),
    )
    client = engine.supervisor.client
    try:
        stream = client.submit(message)
        try:
            row = await stream.next()
        finally:
            if not stream.finished:
                client.abort(message.request_id)
    except EngineGone as error:
        raise engine_failed(error) from error
    if row.inspection is not None:
        return row.inspection
    said = row.error or "it ended before its token was drawn"
    if said.startswith("guided: "):
        raise engine_refusal(said, "answer_token_ids" if wish is None else f"request.{wish.field}")
    remedy = "Look at another place, or change the request"
    raise ApiError(400, f"position {position}: {said}", param="positions", remedy=remedy, code="cannot_inspect")


def _place(spelling: TokenSpelling, body: InspectBody, position: int, found: Inspection) -> Place:
    def token(token_id: int) -> Token:
        return Token(token_id=token_id, text=spelling.text_of(token_id))

    ranked = zip(found.top_token_ids, found.top_logprobs, found.top_final_logprobs, strict=True)
    stages = [
        Stage(
            name=stage.name,
            asked=stage.asked,
            num_left=stage.num_left,
            num_removed=stage.num_removed,
            num_changed=stage.num_changed,
            removed_probability=stage.removed_probability,
            moved=[
                MovedToken(**token(each.token_id).model_dump(), before=each.before, after=each.after)
                for each in stage.moved
            ],
            logprob=stage.logprob,
            rank=stage.rank,
        )
        for stage in found.stages
    ]
    return Place(
        position=position,
        token=token(found.token_id) if position < len(body.answer_token_ids) else None,
        drawn=token(found.drawn_token_id),
        logprob=found.logprob,
        rank=found.rank,
        entropy=found.entropy,
        final_entropy=found.final_entropy,
        top=[
            RankedToken(**token(token_id).model_dump(), logprob=logprob, final_logprob=final)
            for token_id, logprob, final in ranked
        ],
        stages=stages,
    )
