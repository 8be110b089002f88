"""Bodies of the OpenAI-compatible calls and the list of what they may ask that is not built yet.

Owns fields, types and ranges of /v1. Knows nothing of how answers are made. Invariant: a field that would change the
answer is either honoured or refused; one that would not is accepted and named in the header x-pizarra-ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.errors import ApiError
from app.schemas import Text

# field -> values with which it asks for nothing
NOT_YET: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "typical_p": (1,),
    "guided_json": (),
    "guided_regex": (),
    "guided_grammar": (),
    "guided_choice": (),
    "speculation": (False,),
    "trace": (False,),
    "cache_salt": (),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "documents": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
}

StopString = Annotated[Text, Field(min_length=1, max_length=1000)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    include_usage: bool = False


class CompletionFields(BaseModel):
    """What chat and raw completion share."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=10)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)  # -1 is "off" for clients of other engines
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None  # each token is held against all
    stop_token_ids: list[TokenId] | None = Field(default=None, max_length=1024)
    ignore_eos: bool | None = None
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
    def sampling_fields(self) -> dict[str, Any]:
        """The fields of SamplingParams that were given, max_tokens apart."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": 0 if self.top_k == -1 else self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
            "stop_token_ids": None if self.stop_token_ids is None else tuple(self.stop_token_ids),
            "ignore_eos": self.ignore_eos,
        }

    def ignored_fields(self) -> list[str]:
        """Unknown fields, sorted. Raises ApiError for one that would change the answer and is not built yet."""
        extra = self.model_extra or {}
        for name, neutral in NOT_YET.items():
            value = extra.get(name)
            if value is not None and value not in neutral:
                raise ApiError(
                    400,
                    f"{name} is not supported yet",
                    param=name,
                    remedy="Leave it out; the answer would not be what you ask for",
                    code="unsupported_parameter",
                )
        return sorted(extra.keys() - NOT_YET.keys())


class TextPart(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["text"]
    text: Text


class ChatMessage(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)

    def for_template(self) -> dict[str, str]:
        return {"role": "system" if self.role == "developer" else self.role, "content": self.text}


class ChatCompletionBody(CompletionFields):
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_limit(self) -> ChatCompletionBody:
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens  # OpenAI's newer name of the same limit
        return self


class CompletionBody(CompletionFields):
    prompt: Text | list[TokenId] | list[Text] | list[list[TokenId]]

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
