"""/v1/embeddings: OpenAI's call for the vectors of texts.

Owns the answer's shape. Knows nothing of how vectors are made. Invariant: a client that goes ends the work on all its
inputs.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from app.dialects.answer_shapes import note_ignored
from app.dialects.embedding_schemas import EmbeddingBody
from app.dialects.embeddings import prepare_embeddings, written
from app.services import Services, services
from app.streaming import unless_disconnected

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post("/embeddings", response_model=None)
async def embeddings(body: EmbeddingBody, request: Request, parts: Services = Depends(services)) -> Response:
    ignored = body.checked()
    call = await prepare_embeddings(parts, body)
    vectors = await unless_disconnected(request, call.vectors())
    if vectors is None:
        return Response(status_code=499)  # nobody is there to read it
    answer: dict[str, Any] = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": written(vector, body.encoding_format)}
            for index, vector in enumerate(vectors)
        ],
        "model": call.engine.model_id,
        "usage": {"prompt_tokens": call.num_prompt_tokens, "total_tokens": call.num_prompt_tokens},
    }
    response = Response(msgspec.json.encode(answer), media_type="application/json")  # millions of numbers: json is slow
    note_ignored(response, ignored)
    return response
