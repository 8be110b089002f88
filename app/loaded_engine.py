"""One loaded model as the app sees it: its engine process, its tokenizer, its chat template.

Owns what is asked of an engine by those who speak for its model, and its row in the records. Knows nothing of loading
or of other engines. Invariant: only engines that were ready are asked for what `EngineReady` says.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from app.errors import ApiError
from app.prompt import PromptEncoder
from app.supervisor import EngineSupervisor
from app.text import ChatTemplateError
from db.rows import EngineRunRow
from engine.config import EffectiveSetting, LoadOptions
from engine.core.speculation import SpeculationParams
from engine.protocol import EngineReady
from engine.vocab import Vocab

RETRY_AFTER_S = 1  # a queue moves on with every request that ends


@dataclasses.dataclass(slots=True)
class SpeculationSettings:
    """How an engine speculates for requests that do not say: as it was loaded, or as the operator set it since."""

    enabled: bool
    num_speculative_tokens: int
    rule: str

    @classmethod
    def of(cls, options: LoadOptions) -> SpeculationSettings:
        return cls(options.speculation != "off", options.num_speculative_tokens, options.speculation_rule)


@dataclasses.dataclass(slots=True)
class Engine:
    """A supervised engine process with what the app needs to speak for its model."""

    supervisor: EngineSupervisor
    vocab: Vocab
    chat: PromptEncoder | None
    chat_error: str  # why it cannot chat, "" when it can
    sampling_defaults: Mapping[str, float]  # for what a request does not say
    chat_settings: tuple[EffectiveSetting, ...] = ()  # what its chat template does not take
    wishes: LoadOptions | None = (
        None  # the load's options as they were asked for, before names and numbers were filled in
    )
    speculation: SpeculationSettings = dataclasses.field(init=False)
    idle_unload_s: float | None = dataclasses.field(init=False)  # without a request; None: it stays
    idle_since: float | None = dataclasses.field(default_factory=time.time)  # epoch seconds; None: it is busy

    def __post_init__(self) -> None:
        self.speculation = SpeculationSettings.of(self.supervisor.options)
        self.idle_unload_s = self.supervisor.options.idle_unload_s

    @property
    def idle_unload_at(self) -> float | None:
        """When it will be unloaded if nobody asks it for anything, epoch seconds; None: not by itself, or not now."""
        if self.idle_unload_s is None or self.idle_since is None or self.supervisor.state != "ready":
            return None
        return self.idle_since + self.idle_unload_s

    @property
    def model_id(self) -> str:
        return self.supervisor.model_id

    @property
    def ready(self) -> EngineReady:
        assert self.supervisor.ready is not None, "only engines that were ready are handed out"
        return self.supervisor.ready

    @property
    def effective_settings(self) -> list[EffectiveSetting]:
        """What the engine and the app could not do as it was asked for."""
        return [*self.ready.effective_settings, *self.chat_settings]

    def proposer_of(self, wish: SpeculationParams) -> str | None:
        """Who drafts for a request with this wish; None: nobody."""
        if not (wish.enabled and self.speculation.enabled and self.ready.proposers):
            return None
        return wish.proposer or self.ready.speculation

    def check_queue(self, max_waiting: int) -> None:
        """Refuse one more request where as many answers as may wait do. Raises ApiError."""
        beyond = self.supervisor.client.num_sequences - self.supervisor.options.max_num_seqs
        stats = self.supervisor.stats
        waiting = max(beyond, 0 if stats is None else stats.num_requests_waiting)  # counted up to a quarter second ago
        if beyond >= 0 and waiting >= max_waiting:
            raise ApiError(
                429,
                f"{waiting} answers wait for {self.model_id}, and no more than {max_waiting} may",
                remedy="Try again later, or raise PIZARRA_MAX_WAITING_REQUESTS",
                code="queue_full",
                retry_after_s=RETRY_AFTER_S,
            )

    async def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The prompt of a chat (see `PromptEncoder.encode`). Raises ApiError where the template does not take it."""
        if self.chat is None:
            code = "no_chat_template" if self.vocab.chat_template is None else "chat_template_error"
            raise ApiError(400, self.chat_error, param="messages", remedy="Use /v1/completions", code=code)
        try:
            return await asyncio.to_thread(
                self.chat.encode,
                messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables=variables,
            )
        except ChatTemplateError as error:
            raise ApiError(400, str(error), param="messages", code="chat_template_error") from error

    def check_token_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Refuse ids that the model does not have. Raises ApiError."""
        if token_ids and max(token_ids) >= self.ready.vocab_size:
            detail = f"token id {max(token_ids)} is outside the vocabulary of {self.ready.vocab_size}"
            raise ApiError(400, detail, param=param, code="invalid_value")


def struct_fields(struct: Any) -> dict[str, Any]:
    """A protocol struct's fields, for JSON."""
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def run_row(supervisor: EngineSupervisor, chat_settings: Sequence[EffectiveSetting] = ()) -> EngineRunRow:
    base = EngineRunRow(
        id=supervisor.run_id,
        model_id=supervisor.model_id,
        state=supervisor.state,
        started_at=supervisor.started_at,
        pid=supervisor.pid,
        options=dataclasses.asdict(supervisor.options),
    )
    ready = supervisor.ready
    if ready is None:
        return base
    return dataclasses.replace(
        base,
        device=ready.device,
        device_name=ready.device_name,
        dtype=ready.dtype,
        exactness=ready.exactness,
        exactness_reason=ready.exactness_reason,
        load_s=ready.load_s,
        num_kv_blocks=ready.num_kv_blocks,
        block_size=ready.block_size,
        max_model_len=ready.max_model_len,
        effective_settings=[dataclasses.asdict(each) for each in (*ready.effective_settings, *chat_settings)],
        memory=struct_fields(ready.memory),
        kernels=dict(ready.kernels),
        model_hash=ready.model_hash or None,
        drafter_hash=ready.drafter_hash or None,
        speculation=ready.speculation,
    )
