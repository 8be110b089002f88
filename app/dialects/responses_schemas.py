"""Bodies of OpenAI's Responses API.

Owns fields, types and ranges, and the items that a conversation is made of. Knows nothing of how a body is answered.
Invariant: what would change the answer is honoured or refused by its name; what would not is listed by `checked`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Tag, TypeAdapter

from app.dialects.openai_schemas import NOT_YET, REMEDIES, NumLogprobs, SamplingFields
from app.dialects.tool_schemas import MAX_TOOLS, CalledFunction, FunctionOnOffer, ToolName, check_writable
from app.dialects.typed_parts import by_type, refusing_others
from app.errors import ApiError
from app.schemas import Text

LOGPROBS = "message.output_text.logprobs"  # what `include` must hold for log probabilities to be in the answer
MAX_ITEMS = 100_000

# Fields of OpenAI's that need services which are not here, and fields of its other calls that have another name here.
NOT_HERE: dict[str, tuple[Any, ...]] = {
    **{name: neutral for name, neutral in NOT_YET.items() if name not in ("tools", "tool_choice")},
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "context_management": ([],),
    "moderation": (),
    "truncation": ("disabled",),
    "messages": (),
    "max_tokens": (),
    "max_completion_tokens": (),
    "response_format": (),
    "logprobs": (False,),
    "prompt_logprobs": (),
    "n": (1,),
    "best_of": (1,),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
}
NOT_HERE_REMEDIES = {
    **REMEDIES,
    "background": "Ask with stream, and keep the connection open",
    "conversation": "Use previous_response_id, or send the conversation's items as input",
    "prompt": "There are no stored prompts; send its text as instructions and input",
    "context_management": "Send what should be kept as input",
    "truncation": "Leave it out, and send fewer items where the context does not hold them",
    "messages": "Here they are called input",
    "max_tokens": "Here it is called max_output_tokens",
    "max_completion_tokens": "Here it is called max_output_tokens",
    "response_format": "Here it is called text.format",
    "logprobs": f"Here it is asked for with include: [{LOGPROBS!r}], and top_logprobs",
    "n": "Send one request for each; they run at the same time",
}


class Part(BaseModel):
    """What all parts of a body share. What is not declared is not kept: items are written down again."""

    model_config = ConfigDict(strict=True, extra="ignore")


# ---- input ----------------------------------------------------------------------------------------------------------


class TextContent(Part):
    """What was asked, or answered."""

    type: Literal["input_text", "output_text"]
    text: Text


class Refusal(Part):
    """What another model answered."""

    type: Literal["refusal"]
    refusal: Text

    @property
    def text(self) -> str:
        return self.refusal


class ReasoningText(Part):
    type: Literal["reasoning_text"]
    text: Text


class SummaryText(Part):
    type: Literal["summary_text"]
    text: Text


Content = Annotated[
    Annotated[TextContent, Tag("[input_text]")]
    | Annotated[TextContent, Tag("[output_text]")]
    | Annotated[Refusal, Tag("[refusal]")],
    by_type(),
    refusing_others("content", ("input_text", "output_text", "refusal")),
]


class MessageItem(Part):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text | list[Content]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ReasoningItem(Part):
    """Thoughts of an earlier answer. Those that only OpenAI can read have neither content nor summary."""

    type: Literal["reasoning"]
    summary: list[SummaryText] = []
    content: list[ReasoningText] | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content or self.summary)


class FunctionCallItem(CalledFunction):
    """A call that an earlier answer made."""

    model_config = Part.model_config

    type: Literal["function_call"]
    call_id: Text


class FunctionCallOutputItem(Part):
    """What a call has given."""

    type: Literal["function_call_output"]
    call_id: Text
    output: Text | list[Content]

    @property
    def text(self) -> str:
        return self.output if isinstance(self.output, str) else "".join(part.text for part in self.output)


AnyItem = MessageItem | ReasoningItem | FunctionCallItem | FunctionCallOutputItem
Item = Annotated[
    Annotated[MessageItem, Tag("[message]")]
    | Annotated[ReasoningItem, Tag("[reasoning]")]
    | Annotated[FunctionCallItem, Tag("[function_call]")]
    | Annotated[FunctionCallOutputItem, Tag("[function_call_output]")],
    by_type("message"),
    refusing_others("an item", ("message", "reasoning", "function_call", "function_call_output"), default="message"),
]
ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[Item])


# ---- options --------------------------------------------------------------------------------------------------------


class FunctionTool(FunctionOnOffer):
    """A tool that the caller runs."""

    type: Literal["function"]
    strict: bool | None = None


class NamedChoice(Part):
    type: Literal["function"]
    name: ToolName


def _type_first(value: Any) -> Any:
    """OpenAI's own tools have other fields: what is wrong with one is its type, not that it lacks ours."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(kind, str) and kind != "function":
        raise ValueError(f"{kind!r} is not supported: this server runs no tools of its own, only functions of yours")
    return value


def _writable(schema: dict[str, Any]) -> dict[str, Any]:
    check_writable(schema)
    return schema


def _not_empty(given: str | list[AnyItem]) -> str | list[AnyItem]:
    if given == []:
        raise ValueError("at least one item is needed")
    return given


class PlainFormat(Part):
    type: Literal["text", "json_object"]


class SchemaFormat(Part):
    type: Literal["json_schema"]
    name: Text
    json_schema: Annotated[dict[str, Any], AfterValidator(_writable)] = Field(alias="schema")
    description: Text | None = None
    strict: bool | None = None


class TextConfig(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    format: (
        Annotated[
            Annotated[PlainFormat, Tag("[text]")]
            | Annotated[PlainFormat, Tag("[json_object]")]
            | Annotated[SchemaFormat, Tag("[json_schema]")],
            by_type(),
            refusing_others("a format", ("text", "json_object", "json_schema")),
        ]
        | None
    ) = None


class ResponsesBody(SamplingFields):
    """A call of /v1/responses."""

    not_yet: ClassVar[Mapping[str, tuple[Any, ...]]] = NOT_HERE
    remedies: ClassVar[Mapping[str, str]] = NOT_HERE_REMEDIES

    input: Annotated[Text | Annotated[list[Item], Field(max_length=MAX_ITEMS)], AfterValidator(_not_empty)]
    instructions: Text | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    top_logprobs: NumLogprobs | None = None
    include: Annotated[list[Text], Field(max_length=64)] | None = None
    tools: Annotated[
        list[Annotated[FunctionTool, BeforeValidator(_type_first)]] | None, Field(max_length=MAX_TOOLS)
    ] = None
    tool_choice: Annotated[Literal["none", "auto", "required"] | NamedChoice | None, BeforeValidator(_type_first)] = (
        None
    )
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    store: bool | None = None
    previous_response_id: Text | None = None
    metadata: (
        Annotated[
            dict[Annotated[Text, Field(max_length=64)], Annotated[Text, Field(max_length=512)]], Field(max_length=16)
        ]
        | None
    ) = None

    @property
    def items(self) -> list[AnyItem]:
        return [MessageItem(role="user", content=self.input)] if isinstance(self.input, str) else list(self.input)

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @property
    def kept(self) -> bool:
        """Whether the answer is to be kept for a later previous_response_id."""
        return self.store is not False

    def checked(self) -> list[str]:
        ignored = super().checked()
        if self.top_logprobs and not self.wants_logprobs:
            detail, remedy = "top_logprobs needs include", f"Set include to [{LOGPROBS!r}]"
            raise ApiError(400, detail, param="top_logprobs", remedy=remedy, code="invalid_value")
        ignored += [f"include.{name}" for name in self.include or () if name != LOGPROBS]
        if self.tool_choice in (None, "auto") and any(tool.strict for tool in self.tools or ()):
            ignored.append("tools.strict")  # a call that the model chooses to make is held to no grammar
        ignored += [f"text.{name}" for name in (self.text and self.text.model_extra) or ()]
        return sorted(ignored)
