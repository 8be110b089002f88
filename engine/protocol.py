"""Every message that crosses the pipe between the app process and an engine process.

Owns the message types and their encoding (msgspec, tagged maps; no pickle). Knows nothing of pipes or threads.
Invariant: fields are only ever added, with defaults, so that a newer side understands an older one; `PROTOCOL_VERSION`
changes when that cannot hold.
"""

from __future__ import annotations

import msgspec

from engine.config import EffectiveSetting
from engine.core.block_map import BlockFrame as BlockFrame
from engine.core.inspection import Inspection as Inspection
from engine.core.inspection import InspectionWish as InspectionWish
from engine.core.outputs import Logprobs as Logprobs
from engine.core.outputs import RequestOutput as RequestOutput
from engine.core.outputs import RequestProgress as RequestProgress
from engine.core.outputs import RequestSummary as RequestSummary
from engine.core.outputs import RequestTiming as RequestTiming
from engine.core.room import Room as Room
from engine.core.sampling_params import Guided as Guided
from engine.core.sampling_params import SamplingParams as SamplingParams
from engine.core.speculation import DEFAULT_SPECULATION
from engine.core.speculation import CostBucket as CostBucket
from engine.core.speculation import DraftsCost as DraftsCost
from engine.core.speculation import ProposerStats as ProposerStats
from engine.core.speculation import SpeculationParams as SpeculationParams
from engine.core.speculation import VerifiedDraft as VerifiedDraft

PROTOCOL_VERSION = 1


class _Message(msgspec.Struct, frozen=True, tag_field="type", tag=True, omit_defaults=False):
    """Base: encoded as a map whose "type" is the class's name."""


# ---- to the engine --------------------------------------------------------------------------------------------------


class AddRequest(_Message, frozen=True):
    """Start a request. `prompt_token_ids` is not empty. `request_id` is unique within the engine's life.

    n: how many samples of the prompt; rows bear their `index`, and each sample gets a row with a finish_reason.
    pooling: "last" or "mean": no tokens, but the prompt's hidden states after the final norm, of its last token or
    their mean, scaled to length 1. `sampling` means nothing then. inspect: one token, and how it was drawn; the
    prompt's ids are then the prompt and the answer up to there.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    priority: int = 0  # lower is served first
    cache_salt: str = ""  # only requests of one salt share cached blocks
    n: int = 1
    pooling: str = ""
    speculation: SpeculationParams = DEFAULT_SPECULATION
    trace: bool = False  # send a StepTrace of each of its steps
    inspect: InspectionWish | None = None


class CheckGrammar(_Message, frozen=True):
    """Say whether a grammar can be used, in one row of this id: "stop", or "error" and what is wrong with it.

    What was compiled is kept for the request that follows.
    """

    request_id: str
    guided: Guided


class AbortRequest(_Message, frozen=True):
    """End a request now. Unknown or finished ids are ignored.

    `num_output_tokens`: how many output tokens count (a stop string was found there); None: all that were made.
    `index`: only this one of its samples; None: all.
    """

    request_id: str
    num_output_tokens: int | None = None
    index: int | None = None


class SetSpeculation(_Message, frozen=True):
    """Changes how the engine speculates from the next step on. None leaves a thing as it is.

    enabled: False decodes plainly until it is switched on again. clear: drops what proposers kept of past outputs.
    """

    enabled: bool | None = None
    num_speculative_tokens: int | None = None
    rule: str | None = None
    clear: bool = False


class WatchBlocks(_Message, frozen=True):
    """Send a BlockMap twice a second for so long from now; to be renewed while somebody looks.

    afresh: begin again with a frame that tells everything, as after the first WatchBlocks.
    """

    seconds: float
    afresh: bool = False


class AskRoom(_Message, frozen=True):
    """Say in a RoomAnswer of this id whether a request would find room now. Nothing is taken for it.

    prompt_token_ids: None where only the prompt's length is known. max_num_tokens: what the sequence may grow to.
    """

    ask_id: str
    num_tokens: int
    max_num_tokens: int
    prompt_token_ids: list[int] | None = None
    cache_salt: str = ""


class Drain(_Message, frozen=True):
    """Refuse new requests, finish the running ones, then exit."""


class Shutdown(_Message, frozen=True):
    """Abort everything and exit."""


# ---- from the engine ------------------------------------------------------------------------------------------------


class LoadProgress(_Message, frozen=True):
    """Where a load stands. `done` and `total` are bytes for the stages "weights" and "kv_cache", else steps or 0."""

    stage: str  # "start" | "weights" | "kv_cache" | "kernels" | "warm_up"
    done: int = 0
    total: int = 0
    message: str = ""


class EngineMemory(msgspec.Struct, frozen=True):
    """Memory by part, in bytes. `process_bytes` is the engine process's own resident memory after loading."""

    weights_bytes: int = 0
    draft_weights_bytes: int = 0
    kv_bytes: int = 0
    workspace_bytes: int = 0
    runtime_bytes: int = 0
    process_bytes: int = 0
    draft_kv_bytes: int = 0  # of kv_bytes: what the drafter keeps in the pool's blocks
    draft_workspace_bytes: int = 0  # of workspace_bytes: the drafter's buffers


class EngineReady(_Message, frozen=True):
    """The engine takes requests now."""

    protocol_version: int
    pid: int
    architecture: str
    device: str  # "cpu" or "cuda:0"
    device_name: str
    dtype: str
    exactness: str  # "bits" | "distribution"
    exactness_reason: str
    effective_settings: list[EffectiveSetting]
    memory: EngineMemory
    num_kv_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    num_threads: int
    kernels: dict[str, str]  # op -> backend that serves it
    load_s: float = 0.0
    proposers: list[str] = []  # that requests may name; empty: the engine does not speculate
    speculation: str = "off"  # the proposer of requests that name none
    model_hash: str = ""  # of the weights, as drafters are tied to them
    drafter_hash: str = ""
    num_kv_groups: int = 1  # a text takes a block of each group for every block_size tokens


class StepOutputs(_Message, frozen=True):
    """All rows of one step: one message a step, never one a row."""

    rows: list[RequestOutput]


class EngineStats(_Message, frozen=True):
    """Gauges and ever-growing counters, at most four times a second, also when idle. Rates are the reader's work."""

    t_s: float  # wall clock, seconds since the epoch
    num_requests_running: int
    num_requests_waiting: int
    kv_blocks_total: int  # without the null block
    kv_blocks_used: int
    kv_blocks_cached: int
    prompt_tokens_total: int
    generation_tokens_total: int
    requests_finished_total: int
    preemptions_total: int
    steps_total: int
    step_s_total: float
    drafts_total: int = 0
    drafted_total: int = 0
    accepted_total: int = 0
    prefix_cache_queries_total: int = 0  # prompt tokens looked up in the prefix cache
    prefix_cache_hits_total: int = 0  # and those found there
    accepted_per_position_total: list[int] = []
    drafted_per_position_total: list[int] = []
    draft_s_total: float = 0.0  # time spent on drafting
    verify_s_total: float = 0.0  # time of steps that verified drafts
    speculation_enabled: bool = False
    speculation_gain: float | None = None  # measured: tokens a second with the drafts of late, over those without
    proposers: list[ProposerStats] = []


class SpeculationCosts(_Message, frozen=True):
    """What plain and drafting turns took, for a verdict on whether drafts pay; every 2 s at most, where it changed."""

    t_s: float  # wall clock, seconds since the epoch
    buckets: list[CostBucket]


class StepTrace(_Message, frozen=True):
    """What steps gave to traced requests; a draft without tokens is a plain step."""

    drafts: list[VerifiedDraft]


class BlockMap(_Message, frozen=True):
    """What lies in which KV block: a frame of a watch, and only while there is one."""

    frame: BlockFrame


class RoomAnswer(_Message, frozen=True):
    """The answer to an AskRoom."""

    ask_id: str
    room: Room


class RequestsProgress(_Message, frozen=True):
    """How far requests without a token are, at most four times a second, and not while there are none."""

    requests: list[RequestProgress]


class EngineFailed(_Message, frozen=True):
    """The engine cannot go on; it exits after this.

    kind: "does_not_fit" | "bad_checkpoint" | "unsupported" | "bad_options" | "out_of_memory" | "internal".
    """

    kind: str
    message: str


ToEngine = AddRequest | CheckGrammar | AbortRequest | SetSpeculation | WatchBlocks | AskRoom | Drain | Shutdown
FromEngine = (
    LoadProgress
    | EngineReady
    | StepOutputs
    | EngineStats
    | SpeculationCosts
    | StepTrace
    | RequestsProgress
    | BlockMap
    | RoomAnswer
    | EngineFailed
)

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    """One message as msgpack bytes."""
    return _encoder.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    """The engine's side. Raises msgspec.DecodeError on anything else."""
    return _to_engine.decode(data)


def decode_from_engine(data: bytes) -> FromEngine:
    """The app's side. Raises msgspec.DecodeError on anything else."""
    return _from_engine.decode(data)
