"""Bodies of Anthropic's Messages API.

Owns fields, types and ranges. Knows nothing of how a body is answered. Invariant: what a body holds is honoured, named
by `unknown_fields`, or refused by its name; of content, nothing is dropped but thoughts that only Anthropic can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from app.dialects.openai_schemas import PositiveShare, StopString
from app.dialects.speculation_wish import SpeculationWish
from app.dialects.tool_schemas import MAX_TOOLS, FunctionOnOffer, NamedFunction, check_writable
from app.dialects.typed_parts import by_type, refusing_others
from app.errors import ApiError
from app.schemas import Text

# what would change the answer, with the values by which it asks for nothing
REFUSED: dict[str, tuple[Any, ...]] = {"container": (), "mcp_servers": ([],)}
REFUSED_REMEDY = "Leave it out; it names a service of Anthropic's that this server does not have"


def _writable(value: dict[str, Any]) -> dict[str, Any]:
    check_writable(value)
    return value


ToolName = Annotated[Text, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]  # twice as long as OpenAI's
JsonObject = Annotated[dict[str, Any], AfterValidator(_writable)]


class Part(BaseModel):
    """What all parts of a body share."""

    model_config = ConfigDict(strict=True, extra="allow")


# ---- content --------------------------------------------------------------------------------------------------------


class TextBlock(Part):
    type: Literal["text"]
    text: Text


class ThinkingBlock(Part):
    """Thoughts of an earlier answer. signature: theirs to check, here it is always empty."""

    type: Literal["thinking"]
    thinking: Text
    signature: Text = ""


class RedactedThinkingBlock(Part):
    """Thoughts that only Anthropic can read; the model here does without them."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(Part):
    type: Literal["tool_use"]
    id: Text
    name: Text
    input: JsonObject


BLOCKS = ("text", "tool_use", "tool_result", "thinking", "redacted_thinking")
OnlyText = Annotated[TextBlock, refusing_others("a block", ("text",))]


class ToolResultBlock(Part):
    type: Literal["tool_result"]
    tool_use_id: Text
    content: Text | list[OnlyText] | None = None
    is_error: bool | None = None


ContentBlock = Annotated[
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[ToolUseBlock, Tag("[tool_use]")]
    | Annotated[ToolResultBlock, Tag("[tool_result]")]
    | Annotated[ThinkingBlock, Tag("[thinking]")]
    | Annotated[RedactedThinkingBlock, Tag("[redacted_thinking]")],
    by_type(),
    refusing_others("a block", BLOCKS),
]
HELD_BY = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}


class MessageParam(Part):
    role: Literal["user", "assistant", "system"]
    content: Text | list[ContentBlock]

    @model_validator(mode="after")
    def _held_by_its_role(self) -> MessageParam:
        for block in self.blocks:
            if block.type not in HELD_BY[self.role]:
                raise ValueError(f"a message of role {self.role} holds no {block.type}")
        return self

    @property
    def blocks(self) -> list[TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock]:
        return [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else list(self.content)


# ---- options --------------------------------------------------------------------------------------------------------


def _of_the_callers(value: Any) -> Any:
    """Anthropic's own tools have no input_schema: what is wrong with one is its type, not that."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind not in (None, "custom"):
        raise ValueError(
            f"tools of type {kind!r} are Anthropic's own; what is supported is a name with an input_schema"
        )
    return value


class OfferedFunction(FunctionOnOffer):
    """A tool that the caller runs."""

    type: Literal["custom"] | None = None
    name: ToolName
    parameters: dict[str, Any] = Field(alias="input_schema")

    @field_validator("parameters", mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """Their types let `properties` and `required` be null for none."""
        if not isinstance(value, dict):
            return value
        return {
            name: each for name, each in value.items() if each is not None or name not in ("properties", "required")
        }


OfferedTool = Annotated[OfferedFunction, BeforeValidator(_of_the_callers)]


class ChosenFunction(NamedFunction):
    name: ToolName


class ToolChoice(Part):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _with_a_name(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("a tool_choice of type tool, and no other, needs name")
        return self


class ThinkingConfig(Part):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]


class OutputFormat(Part):
    type: Literal["json_schema"]
    json_schema: JsonObject = Field(alias="schema")


class OutputConfig(Part):
    format: OutputFormat | None = None


class PromptBody(Part):
    """What decides the prompt, and so how many tokens it has."""

    model: Text | None = None
    messages: list[MessageParam] = Field(min_length=1)
    system: Text | list[OnlyText] | None = None
    tools: Annotated[list[OfferedTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the beta's name of output_config.format

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """What the answer must validate against."""
        chosen = self.output_config.format if self.output_config is not None else None
        chosen = chosen or self.output_format
        return None if chosen is None else chosen.json_schema

    def checked(self) -> set[str]:
        """Names of fields that mean nothing here. Raises ApiError for one that would change the answer."""
        for name, neutral in REFUSED.items():
            value = (self.model_extra or {}).get(name)
            if value is not None and value not in neutral:
                detail = f"{name} is not supported"
                raise ApiError(400, detail, param=name, remedy=REFUSED_REMEDY, code="unsupported_parameter")
        return unknown_fields(self) - REFUSED.keys()


class MessagesBody(PromptBody):
    """A call of /v1/messages. The last five fields are this server's, as in /v1/chat/completions."""

    max_tokens: int = Field(ge=1)
    stop_sequences: Annotated[list[StopString], Field(max_length=16)] | None = None
    temperature: float | None = Field(default=None, ge=0, le=10)
    top_p: PositiveShare | None = None
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    stream: bool | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    cache_salt: Annotated[Text, Field(min_length=1, max_length=1000)] | None = None
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    speculation: SpeculationWish = None
    trace: bool | None = None


class TokensCount(BaseModel):
    input_tokens: int


def unknown_fields(part: BaseModel, before: str = "") -> set[str]:
    """Fields that are set and that no model here declares, as dotted names without the places in lists."""
    found = {f"{before}{name}" for name, value in (part.model_extra or {}).items() if value is not None}
    for name in part.model_fields_set & type(part).model_fields.keys():
        value = getattr(part, name)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, BaseModel):
                found |= unknown_fields(each, f"{before}{name}.")
    return found
