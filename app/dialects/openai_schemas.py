"""Bodies of the OpenAI-compatible calls and the list of what they may ask that is not built yet.

Owns fields, types and ranges. Knows nothing of how answers are made. Invariant: a field that would change the answer is
either honoured or refused; one that would not is accepted and named in the header x-pizarra-ignored.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from app.dialects.speculation_wish import SpeculationWish
from app.dialects.tool_schemas import MAX_TOOLS, CalledTool, NamedTool, ToolOnOffer, check_writable
from app.errors import ApiError
from app.schemas import Text
from app.text import OWN_VARIABLES

# field -> values with which it asks for nothing
NOT_YET: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "structured_outputs": ({},),
    "use_beam_search": (False,),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "chat_template": (),
    "documents": ([],),
    "skip_special_tokens": (True,),
}
REMEDIES = {
    "suffix": "Filling in between two texts needs a model trained for it; put what comes before into prompt",
    "chat_template": "A template is a program, and a request may not bring one. Set the model's own up with "
    "chat_template_kwargs, or send the rendered prompt to /v1/completions",
    "structured_outputs": "Use response_format or guided_json, guided_regex, guided_grammar, guided_choice",
}
MAX_LOGPROBS = 20
MAX_SAMPLES = 128
MAX_PROMPTS = 128
MAX_ALLOWED = 2**18  # ids: as many as the largest vocabulary has

StopString = Annotated[Text, Field(min_length=1, max_length=1000)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
NumLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]


class OpenAIBody(BaseModel):
    """What all bodies share."""

    model_config = ConfigDict(strict=True, extra="allow")

    not_yet: ClassVar[Mapping[str, tuple[Any, ...]]] = NOT_YET
    remedies: ClassVar[Mapping[str, str]] = REMEDIES

    model: Text | None = None

    def checked(self) -> list[str]:
        """Unknown fields, sorted. Raises ApiError for one that would change the answer and is not built yet."""
        extra = self.model_extra or {}
        for name, neutral in self.not_yet.items():
            value = extra.get(name)
            if value is not None and value not in neutral:
                remedy = self.remedies.get(name, "Leave it out; the answer would not be what you ask for")
                detail = f"{name} is not supported yet"
                raise ApiError(400, detail, param=name, remedy=remedy, code="unsupported_parameter")
        return sorted(extra.keys() - self.not_yet.keys())


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    include_usage: bool = False


class JsonSchemaFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")  # none given: any JSON object


class ResponseFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class SamplingFields(OpenAIBody):
    """What a body may ask of an answer under the same name in every dialect of OpenAI's."""

    min_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0, le=10)
    top_p: PositiveShare | None = None
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)  # -1 is "off" for clients of other engines
    min_p: Share | None = None
    typical_p: PositiveShare | None = None
    xtc_probability: Share | None = None
    xtc_threshold: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    dry_multiplier: float | None = Field(default=None, ge=0, le=100)
    dry_base: float | None = Field(default=None, gt=0, le=100)
    dry_allowed_length: int | None = Field(default=None, ge=1, lt=2**31)
    dry_sequence_breakers: Annotated[list[StopString], Field(max_length=64)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=1024)] | None = None
    bad_words: Annotated[list[StopString], Field(max_length=256)] | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None  # each token is held against all
    stop_token_ids: list[TokenId] | None = Field(default=None, max_length=1024)
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool | None = None
    logprobs_mode: Literal["raw", "processed"] | None = None
    guided_json: Text | dict[str, Any] | None = None
    guided_regex: Text | None = None
    guided_grammar: Text | None = None
    guided_choice: Annotated[list[Text], Field(min_length=1, max_length=1024)] | None = None
    cache_salt: Annotated[Text, Field(min_length=1, max_length=1000)] | None = None
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    stream: bool | None = None
    speculation: SpeculationWish = None
    trace: bool | None = None

    @property
    def stop_strings(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop


class CompletionFields(SamplingFields):
    """What chat and raw completion share."""

    max_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1, le=MAX_SAMPLES)
    best_of: int | None = Field(default=None, ge=1)
    prompt_logprobs: NumLogprobs | None = None
    response_format: ResponseFormat | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None  # vLLM's: `token_ids` of each choice, `prompt_token_ids`, and `stop_reason`

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def num_samples(self) -> int:
        return self.n or 1

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """How many alternatives to each token, None: no log probabilities at all."""

    @property
    def num_prompt_logprobs(self) -> int | None:
        return self.prompt_logprobs

    def checked(self) -> list[str]:
        ignored = super().checked()
        if self.best_of is not None and self.best_of != self.num_samples:
            raise ApiError(
                400,
                f"best_of={self.best_of} with n={self.num_samples}: choosing among more samples is not supported",
                param="best_of",
                remedy="Ask for all of them with n, and choose by their logprobs",
                code="unsupported_parameter",
            )
        if self.stream and self.prompt_logprobs is not None:
            detail = "prompt_logprobs cannot be streamed"
            raise ApiError(400, detail, param="prompt_logprobs", remedy="Leave stream out", code="invalid_value")
        return ignored


class TextPart(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["text"]
    text: Text


class ChatMessage(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[TextPart] | None = None
    name: Text | None = None
    reasoning_content: Text | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: Text | None = None

    @model_validator(mode="after")
    def _complete(self) -> ChatMessage:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError(f"a message of role {self.role} needs content")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only an assistant makes tool_calls")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("a message of role tool, and no other, needs tool_call_id")
        return self

    @property
    def text(self) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)

    def for_template(self) -> dict[str, Any]:
        optional = {
            "name": self.name,
            "reasoning_content": self.reasoning_content,
            "tool_calls": [call.for_template() for call in self.tool_calls or ()] or None,
            "tool_call_id": self.tool_call_id,
        }
        given = {field: value for field, value in optional.items() if value is not None}
        return {"role": "system" if self.role == "developer" else self.role, "content": self.text, **given}


class ChatFields(OpenAIBody):
    """How messages become a prompt, as vLLM has it.

    add_generation_prompt: the prompt ends where an answer begins; if not said, it does unless continue_final_message:
    then it ends where the last message's content does, and the answer goes on from there. chat_template_kwargs: more
    variables for the template, as `enable_thinking` is for Qwen3's.
    """

    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[ToolOnOffer], Field(max_length=MAX_TOOLS)] | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _of_the_requests_own(cls, variables: dict[str, Any] | None) -> dict[str, Any] | None:
        check_writable(variables)
        taken = sorted(OWN_VARIABLES.intersection(variables or ()))
        if taken:
            raise ValueError(f"{', '.join(taken)}: the server sets this; use the request's field where there is one")
        return variables

    @property
    def opens_answer(self) -> bool:
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt

    @property
    def offered_tools(self) -> list[ToolOnOffer]:
        """Those that the model is told of."""
        return self.tools or []

    def checked(self) -> list[str]:
        if self.continue_final_message and self.add_generation_prompt:
            detail = "continue_final_message and add_generation_prompt exclude each other"
            raise ApiError(400, detail, param="continue_final_message", remedy="Keep one of them", code="invalid_value")
        return super().checked()


class ChatCompletionBody(CompletionFields, ChatFields):
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> ChatCompletionBody:
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens  # OpenAI's newer name of the same limit
        return self

    @property
    def offered_tools(self) -> list[ToolOnOffer]:
        return [] if self.tool_choice == "none" else super().offered_tools

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def checked(self) -> list[str]:
        if self.top_logprobs and not self.logprobs:
            detail = "top_logprobs needs logprobs"
            raise ApiError(400, detail, param="top_logprobs", remedy="Set logprobs to true", code="invalid_value")
        return super().checked()


class CompletionBody(CompletionFields):
    prompt: Text | list[TokenId] | list[Text] | list[list[TokenId]]
    echo: bool = False
    logprobs: NumLogprobs | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        """What is asked for outright, and what an echo with log probabilities needs."""
        if not self.echo or self.logprobs is None:
            return self.prompt_logprobs
        return max(self.logprobs, self.prompt_logprobs or 0)

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each of them, as text or as token ids. An empty list is one prompt without tokens."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        several: list[str | list[int]] = [each for each in self.prompt if not isinstance(each, int)]
        return several or [[each for each in self.prompt if isinstance(each, int)]]

    def checked(self) -> list[str]:
        if len(self.prompts) > MAX_PROMPTS:
            detail = f"{len(self.prompts)} prompts in one request, and no more than {MAX_PROMPTS} may be"
            raise ApiError(400, detail, param="prompt", remedy="Send several requests", code="invalid_value")
        return super().checked()


# ---- /tokenize, /detokenize -----------------------------------------------------------------------------------------


class TokenizeBody(ChatFields):
    """A text, or a chat."""

    prompt: Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None  # a chat's template writes them itself
    return_token_strs: bool = False


class Tokenized(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    special: list[int] | None = None  # places of special tokens, with token_strs


class DetokenizeBody(OpenAIBody):
    tokens: list[TokenId]


class Detokenized(BaseModel):
    prompt: str
