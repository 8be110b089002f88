"""Bodies of the OpenAI-compatible calls and the list of what they may ask that is not built yet.

Owns fields, types and ranges. Knows nothing of how answers are made. Invariant: a field that would change the answer is
either honoured or refused; one that would not is accepted and named in the header x-pizarra-ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.errors import ApiError
from app.schemas import Text
from app.tool_schemas import MAX_TOOLS, CalledTool, NamedTool, ToolOnOffer

# field -> values with which it asks for nothing
NOT_YET: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "structured_outputs": ({},),
    "allowed_token_ids": (),
    "use_beam_search": (False,),
    "speculation": (False,),
    "trace": (False,),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "skip_special_tokens": (True,),
}
REMEDIES = {
    "suffix": "Filling in between two texts needs a model trained for it; put what comes before into prompt",
    "structured_outputs": "Use response_format or guided_json, guided_regex, guided_grammar, guided_choice",
}
MAX_LOGPROBS = 20
MAX_SAMPLES = 128

StopString = Annotated[Text, Field(min_length=1, max_length=1000)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
NumLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]


class OpenAIBody(BaseModel):
    """What all bodies share."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: Text | None = None

    def checked(self) -> list[str]:
        """Unknown fields, sorted. Raises ApiError for one that would change the answer and is not built yet."""
        extra = self.model_extra or {}
        for name, neutral in NOT_YET.items():
            value = extra.get(name)
            if value is not None and value not in neutral:
                remedy = REMEDIES.get(name, "Leave it out; the answer would not be what you ask for")
                detail = f"{name} is not supported yet"
                raise ApiError(400, detail, param=name, remedy=remedy, code="unsupported_parameter")
        return sorted(extra.keys() - NOT_YET.keys())


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


class CompletionFields(OpenAIBody):
    """What chat and raw completion share."""

    max_tokens: int | None = Field(default=None, ge=1)
    min_tokens: int | None = Field(default=None, ge=0)
    n: int | None = Field(default=None, ge=1, le=MAX_SAMPLES)
    best_of: int | None = Field(default=None, ge=1)
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
    include_stop_str_in_output: bool = False
    ignore_eos: bool | None = None
    prompt_logprobs: NumLogprobs | None = None
    logprobs_mode: Literal["raw", "processed"] | None = None
    response_format: ResponseFormat | None = None
    guided_json: Text | dict[str, Any] | None = None
    guided_regex: Text | None = None
    guided_grammar: Text | None = None
    guided_choice: Annotated[list[Text], Field(min_length=1, max_length=1024)] | None = None
    cache_salt: Annotated[Text, Field(min_length=1, max_length=1000)] | None = None
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def stop_strings(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def num_samples(self) -> int:
        return self.n or 1

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives to each token, None: no log probabilities at all."""
        raise NotImplementedError

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


class ChatCompletionBody(CompletionFields):
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    add_generation_prompt: bool = True
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    tools: Annotated[list[ToolOnOffer], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> ChatCompletionBody:
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens  # OpenAI's newer name of the same limit
        return self

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
    def single_prompt(self) -> str | list[int]:
        """The one prompt; several are refused."""
        if isinstance(self.prompt, str):
            return self.prompt
        prompts = [each for each in self.prompt if not isinstance(each, int)]
        if len(prompts) > 1:
            raise ApiError(
                400,
                f"{len(prompts)} prompts in one request are not supported yet",
                param="prompt",
                remedy="Send one request for each; they run at the same time",
                code="unsupported_parameter",
            )
        return prompts[0] if prompts else [each for each in self.prompt if isinstance(each, int)]


# ---- /tokenize, /detokenize -----------------------------------------------------------------------------------------


class TokenizeBody(OpenAIBody):
    """A text, or a chat."""

    prompt: Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None  # a chat's template writes them itself
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class Tokenized(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeBody(OpenAIBody):
    tokens: list[TokenId]


class Detokenized(BaseModel):
    prompt: str
