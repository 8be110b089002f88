"""The parts of a chat's body that are about tools: what is on offer, which to call, what was called.

Owns their fields and checks. Knows nothing of templates or parsers. Invariant: arguments and parameters that pass are
JSON objects that can be written as UTF-8.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from app.parsers.base import Tool
from app.schemas import Text

MAX_TOOLS = 128

ToolName = Annotated[Text, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionOnOffer(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    name: ToolName
    description: Text | None = None
    parameters: dict[str, Any] | None = None  # none given: it takes no arguments

    @field_validator("parameters")
    @classmethod
    def _of_an_object(cls, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        if parameters is None:
            return None
        check_writable(parameters)
        if parameters.get("type", "object") != "object":
            raise ValueError('the parameters of a function are of "type": "object"')
        if not isinstance(parameters.get("properties", {}), dict):
            raise ValueError('"properties" of the parameters is an object')
        required = parameters.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise ValueError('"required" of the parameters is a list of names')
        return {"type": "object", **parameters}


class ToolOnOffer(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["function"]
    function: FunctionOnOffer

    @property
    def tool(self) -> Tool:
        return Tool(self.function.name, self.function.parameters or {"type": "object", "properties": {}})

    def for_template(self) -> dict[str, Any]:
        """With the fields that templates read without asking."""
        described = {"name": self.function.name, "description": self.function.description or ""}
        return {"type": "function", "function": {**described, "parameters": dict(self.tool.parameters)}}


class NamedFunction(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    name: ToolName


class NamedTool(BaseModel):
    """The choice of one tool."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["function"]
    function: NamedFunction


class CalledFunction(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    name: Text
    arguments: Text

    @field_validator("arguments")
    @classmethod
    def _an_object(cls, arguments: str) -> str:
        try:
            value = json.loads(arguments or "{}")
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        check_writable(value)
        if not isinstance(value, dict):
            raise ValueError("the arguments of a call are the text of a JSON object")
        return arguments or "{}"


class CalledTool(BaseModel):
    """A call that an earlier answer made."""

    model_config = ConfigDict(strict=True, extra="allow")

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """With the arguments as a value: templates write it as JSON themselves."""
        function = {"name": self.function.name, "arguments": json.loads(self.function.arguments)}
        return {"id": self.id, "type": "function", "function": function}


def check_writable(value: Any) -> None:
    """ValueError for what is no JSON in UTF-8: half a surrogate pair, a number that is none, nesting without end."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
