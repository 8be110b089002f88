"""/tokenize and /detokenize: vLLM's calls between text and token ids.

Owns their answers. Knows nothing of requests. Invariant: a chat is tokenised as the same chat would be answered.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Depends, Response

from app.dialects.answer_plan import unread_variables
from app.dialects.answer_shapes import note_ignored
from app.dialects.logprobs import TokenSpelling
from app.dialects.openai_schemas import DetokenizeBody, Detokenized, TokenizeBody, Tokenized
from app.dialects.prepared import chat_prompt
from app.errors import ApiError
from app.services import Services, services

router = APIRouter(tags=["OpenAI"])


@router.post("/tokenize")
async def tokenize(body: TokenizeBody, response: Response, parts: Services = Depends(services)) -> Tokenized:
    ignored = body.checked()
    engine = parts.engines.serving(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "either prompt or messages is needed", param="prompt", code="invalid_value")
    if body.messages is not None:
        if body.add_special_tokens:
            detail = "add_special_tokens is not supported for messages: the chat template writes them itself"
            raise ApiError(400, detail, param="add_special_tokens", remedy="Leave it out", code="invalid_value")
        ids = await chat_prompt(engine, body.messages, body)
        ignored += unread_variables(body, engine)
    else:
        special = body.add_special_tokens is not False
        ids = await asyncio.to_thread(engine.vocab.encode, body.prompt or "", add_special_tokens=special)
    spelling = TokenSpelling(engine.vocab)
    note_ignored(response, ignored)
    spelled = [spelling.text_of(token_id) for token_id in ids] if body.return_token_strs else None
    specials = engine.vocab.special_ids
    places = [place for place, token_id in enumerate(ids) if token_id in specials] if body.return_token_strs else None
    limit = engine.ready.max_model_len
    return Tokenized(count=len(ids), max_model_len=limit, tokens=ids, token_strs=spelled, special=places)


@router.post("/detokenize")
async def detokenize(body: DetokenizeBody, response: Response, parts: Services = Depends(services)) -> Detokenized:
    note_ignored(response, body.checked())
    engine = parts.engines.serving(body.model)
    engine.check_token_ids(body.tokens, "tokens")
    return Detokenized(prompt=await asyncio.to_thread(engine.vocab.decode, body.tokens, skip_special_tokens=False))
