"""How the tests of /v1/responses ask, and how they read what comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.app.dialects.test_tools import TEMPLATES
from tests.app.harness import Client, give_templates, make_home, make_settings, serving

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
MODELS = {name: TEMPLATES[name] for name in ("hermes", "thinker", "plain")}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": False}
TIME = {"type": "function", "name": "get_time", "description": "The time.", "parameters": None, "strict": None}
THOUGHT = "Hm, <b>?\n</think>\n\nSo."


@contextmanager
def serving_models(folder: Path) -> Iterator[Client]:
    """A server with these models loaded."""
    home = give_templates(make_home(folder, *MODELS), MODELS)
    with serving(make_settings(home)) as client:
        for name in MODELS:
            assert client.load(name)["state"] == "succeeded"
        yield client


def asking(say: str, **fields: Any) -> dict[str, Any]:
    return {"model": "hermes", "input": f"SAY«{say}»", "tools": [WEATHER, TIME], **fields}


def streamed(client: Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, each of which OpenAI's own types take, in the order of their numbers."""
    with client.stream("POST", "/v1/responses", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        text = "".join(response.iter_text())
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        EVENT.validate_python(found[-1])
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def texts_of(response: Response) -> list[tuple[str, str]]:
    """What each item says."""
    texts = []
    for item in response.output:
        if item.type == "message":
            texts.append(("message", "".join(part.text for part in item.content if part.type == "output_text")))
        elif item.type == "reasoning":
            texts.append(("reasoning", "".join(part.text for part in item.content or ())))
        elif item.type == "function_call":
            texts.append((item.name, item.arguments))
    return texts
