"""What the engine is told and what a checkpoint says of itself: plain frozen data, no torch, no msgspec.

Owns `LoadOptions` (the operator's wishes for one load), `ModelConfig` (the architecture as read from a checkpoint)
and `EffectiveSetting` (what became of a wish). Knows nothing of files, devices or messages.
Invariant: an option that cannot be honoured is refused or listed as an `EffectiveSetting`, never dropped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

MIB = 1024 * 1024
GIB = 1024 * MIB


class ConfigError(ValueError):
    """A wish that cannot be honoured. The message names the field, what was found, and the remedy."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The operator's wishes for one load of a model. Every field has a default that suits a laptop."""

    dtype: str = "auto"  # "auto" | "bfloat16" | "float32" | "float64"; float64 serves proofs only
    device: str = "auto"  # "auto" | "cpu" | "cuda"
    max_model_len: int | None = None  # tokens of one sequence; None: the model's own context, or what the pool holds
    max_num_seqs: int = 16  # requests running at once
    max_num_batched_tokens: int = 512  # tokens of one step: the prefill chunk and the decode rows together
    gpu_memory_utilization: float = 0.9  # share of the device's total memory the engine may use (GPU only)
    memory_limit_bytes: int | None = None  # the most the engine may take of its device's memory; None: what is free
    kv_cache_memory_bytes: int | None = None  # exact size of the KV pool; None: sized from free memory and a cap
    kv_cache_dtype: str = (
        "auto"  # "auto": the model's dtype | "int8" | "fp8" (CUDA, compute capability 8.9): half of bf16
    )
    block_size: int = 16  # tokens a KV block holds
    enable_prefix_caching: bool = True  # requests that begin alike share the blocks of what is alike
    long_prefill_token_threshold: int = 0  # most tokens of one request in a step; 0: only max_num_batched_tokens counts
    num_threads: int | None = None  # CPU threads; None: the cores of this machine, divided among loaded engines
    tensor_parallel_size: int = 1  # refused above 1 until it exists
    recorded_steps: bool = True  # the kernels of a step are recorded once and replayed without Python; False: never
    kernel_backend: str = "auto"  # "auto": the device's own | "cpu_ops" | "triton_ops" | "reference": for every op
    activation_bits: str = "auto"  # of bf16 inputs times weights in codes: "auto": 8 where it is faster | "8" | "16"
    speculation: str = "auto"  # "auto": "hybrid" with a drafter, else "suffix" | "off" | a name of PROPOSERS
    num_speculative_tokens: int = 8  # the most drafts that a request has verified in one step
    speculation_rule: str = "match"  # how drafts are accepted: "match" (same bits) | "rejection" (same distribution)
    drafter: str = ""  # folder or file of a draft model, an EAGLE or Medusa drafter; empty: the one tied to the model
    idle_unload_s: int | None = None  # the app unloads it after so many seconds without a request; None: never

    def __post_init__(self) -> None:
        if self.tensor_parallel_size != 1:
            raise ConfigError(
                f"tensor_parallel_size={self.tensor_parallel_size}: one device per engine is all that exists today; "
                "set it to 1"
            )
        for name, low, high in (
            ("max_num_seqs", 1, 1024),
            ("max_num_batched_tokens", 16, 65536),
            ("block_size", 1, 1024),
            ("long_prefill_token_threshold", 0, 65536),
            ("max_model_len", 1, 10_000_000),
            ("num_threads", 1, 1024),
            ("kv_cache_memory_bytes", 1, 1 << 50),
            ("memory_limit_bytes", 1, 1 << 50),
            ("idle_unload_s", MIN_IDLE_S, MAX_IDLE_S),
            ("num_speculative_tokens", 1, MAX_DRAFTS),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name}={value}: must lie between {low} and {high}")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(f"gpu_memory_utilization={self.gpu_memory_utilization}: must lie in (0, 1]")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype={self.dtype!r}: known are {', '.join(DTYPES)}")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise ConfigError(f"kv_cache_dtype={self.kv_cache_dtype!r}: known are {', '.join(KV_CACHE_DTYPES)}")
        if self.kernel_backend not in KERNEL_BACKENDS:
            raise ConfigError(f"kernel_backend={self.kernel_backend!r}: known are {', '.join(KERNEL_BACKENDS)}")
        if self.activation_bits not in ACTIVATION_BITS:
            raise ConfigError(f"activation_bits={self.activation_bits!r}: known are {', '.join(ACTIVATION_BITS)}")
        if self.speculation_rule not in SPECULATION_RULES:
            raise ConfigError(f"speculation_rule={self.speculation_rule!r}: known are {', '.join(SPECULATION_RULES)}")
        if self.speculation not in SPECULATIONS:
            raise ConfigError(f"speculation={self.speculation!r}: known are {', '.join(SPECULATIONS)}")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"device={self.device!r}: known are auto, cpu, cuda")


DTYPES = ("auto", "bfloat16", "float32", "float64")
KV_CACHE_DTYPES = ("auto", "int8", "fp8")
KERNEL_BACKENDS = ("auto", "cpu_ops", "triton_ops", "reference")
ACTIVATION_BITS = ("auto", "8", "16")
SPECULATION_RULES = ("match", "rejection")
SPECULATIONS = ("auto", "off", "ngram", "suffix", "draft_model", "eagle", "medusa", "hybrid")
MIN_IDLE_S, MAX_IDLE_S = 10, 30 * 86400  # of idle_unload_s
MAX_DRAFTS = 15  # that one request may have verified in a step: with the token before them 16 rows
FP8_CAPABILITY = (8, 9)  # the first CUDA devices that compute with e4m3


def check_kv_cache_dtype(options: LoadOptions, device: str, capability: tuple[int, int] | None = None) -> None:
    """Refuses a `kv_cache_dtype` that the device does not have. ConfigError.

    device: "cpu" | "cuda". capability: the CUDA device's compute capability, None where it is not known yet.
    """
    if options.kv_cache_dtype != "fp8" or (device == "cuda" and (capability or FP8_CAPABILITY) >= FP8_CAPABILITY):
        return
    found = "the device is a CPU" if capability is None else f"this one has {capability[0]}.{capability[1]}"
    raise ConfigError(
        f'kv_cache_dtype="fp8": needs a CUDA device of compute capability {FP8_CAPABILITY[0]}.{FP8_CAPABILITY[1]} or '
        f'more, {found}; use "int8", which takes as little memory on every device'
    )


def check_kernel_backend(options: LoadOptions, device: str) -> None:
    """Refuses a `kernel_backend` that cannot run there. ConfigError.

    device: "cpu" | "cuda". On a CPU Triton has only its interpreter, which this process's TRITON_INTERPRET=1 chooses.
    """
    wish, interpreted = options.kernel_backend, os.environ.get("TRITON_INTERPRET") == "1"
    if wish == "cpu_ops" and device != "cpu":
        raise ConfigError('kernel_backend="cpu_ops": runs on a CPU, the device is a GPU; use "auto" or "triton_ops"')
    if wish == "cpu_ops" and options.dtype == "float64":
        raise ConfigError('kernel_backend="cpu_ops": has no kernels for float64; use "reference"')
    if wish == "triton_ops" and device == "cpu" and not (interpreted and options.dtype == "float32"):
        raise ConfigError(
            'kernel_backend="triton_ops": on a CPU these run in Triton\'s interpreter alone, slowly and for tests: '
            f'set TRITON_INTERPRET=1 and dtype="float32" (found dtype={options.dtype!r}), or use "cpu_ops"'
        )


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Rotary frequency scaling for contexts longer than the trained one.

    kind: "linear", "dynamic" (a base that grows with the context beyond the trained one), "llama3" (Llama 3.1's
    by-wavelength interpolation), "yarn" (arXiv 2309.00071) or "longrope" (arXiv 2402.13753). Cosines and sines are
    multiplied by `attention_factor`.
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    attention_factor: float = 1.0
    beta_fast: float = 32.0  # yarn: pairs that turn this often within the original context keep their frequency
    beta_slow: float = 1.0  # yarn: pairs that turn less often than this are interpolated in full
    truncate: bool = True  # yarn: the bounds between the two are rounded to whole pairs
    short_factors: tuple[float, ...] = ()  # longrope: divisors, one per rotary pair, up to the original context
    long_factors: tuple[float, ...] = ()  # longrope: the same beyond it


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder's architecture, from config.json or GGUF metadata. The defaults are Llama's."""

    architecture: str  # key of engine.models.registry.MODELS, e.g. "llama"
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False  # of q, k, v and the output
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = field(default=())
    qkv_bias: bool = False  # of q, k and v where attention_bias is not set
    qk_norm: str = "none"  # "none" | "head" (one weight for all heads) | "projection" (over all heads at once)
    norm_placement: str = "pre"  # where norms stand to attention and MLP: "pre" | "post" | "sandwich" (both)
    norm_offset: float = 0.0  # added to every norm's weight
    activation: str = "silu"  # of the gated MLP: "silu" | "gelu_tanh"
    fused_projections: bool = False  # the checkpoint stores q, k, v as one matrix, gate and up as another
    layer_windows: tuple[int, ...] = ()  # sliding window of each layer, 0 = full attention; empty: all full
    window_rope_theta: float | None = None  # rotary base of the layers with a window; None: rope_theta, scaled alike
    nope_layers: tuple[int, ...] = ()  # layers without rotary embedding
    attention_scale: float | None = None  # None: head_dim ** -0.5
    attention_soft_cap: float = 0.0  # 0: none
    logits_soft_cap: float = 0.0  # 0: none
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and MLP add to the residual
    logits_scale: float = 1.0
    num_experts: int = 0  # 0: one dense MLP; else this many of width intermediate_size in every layer
    num_experts_per_token: int = 0
    normalise_experts: bool = True  # the weights of a token's experts sum to 1
    transformers_class: str = ""  # the class of transformers that runs the model; empty: the decoder of `architecture`
    transformers_reason: str = ""  # why that class does

    @property
    def longest_context(self) -> int:
        """The most tokens of one sequence that may be asked for; by default it is `max_position_embeddings`."""
        scaling = self.rope_scaling
        if scaling is None or scaling.kind != "dynamic":
            return self.max_position_embeddings
        return int(self.max_position_embeddings * scaling.factor)


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """What became of a wish: `requested` and `effective` are shown as text, `reason` says why they differ."""

    name: str
    requested: str
    effective: str
    reason: str
