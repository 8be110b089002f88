"""The public signature of every op, with shapes.

Owns the contracts: `op(out, inputs..., params)` writes into buffers that the caller owns and allocates nothing that
outlives the call. Knows nothing of models or of who implements an op (that is `kernels.registry`).
Invariant (design, section 6): the result of a row depends on that row's inputs alone, never on how many rows there
are or where the row stands among them. Every backend is tested against fp64 and, in bf16 and fp32, for this invariance
(float64 models serve proofs of values and promise no bits).

Letters: T rows (tokens) of a step, padded by the caller to a multiple of `Ops.row_alignment`; H hidden size; N, K a
weight's outputs and inputs; A query heads; C key/value heads; D head size; B block size; R requests. "dtype" is the
model's: bfloat16, float32 or float64; sums run in fp32 (fp64 for a float64 model).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels.group_quant import GroupQuant


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums run in: fp64 for a float64 model, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def rounded(value: float, dtype: torch.dtype) -> float:
    """The number of `dtype` nearest to `value`."""
    return float(torch.tensor(value, dtype=dtype))


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Who attends to what in one step. Built once a step, read by every layer.

    positions:       int64 [T]  absolute position of each row; a row sees keys 0..position of its request
    slot_mapping:    int64 [T]  block_id * B + offset where the row's key and value go; -1 for padding rows
    block_tables:    int32 [R, max_blocks]  unused entries are 0, the null block
    query_start_loc: R + 1 row numbers; request r owns rows query_start_loc[r] to query_start_loc[r + 1] - 1
    query_starts:    int32 [R + 1]  the same on the device; a request that owns no rows pads the step
    row_request:     int32 [T]  the request of each row, -1 for padding rows
    """

    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    query_start_loc: Sequence[int]
    query_starts: Tensor
    row_request: Tensor


@dataclass(frozen=True, slots=True)
class KVCache:
    """One layer's keys and values, in blocks.

    keys, values: [blocks, C, B, D] in dtype; or codes, int8 or float8_e4m3fn, where a key or value is code * scale.
    key_scales, value_scales: fp32 [blocks, C, B], of codes alone: one for each token and head. A vector of zeros has
    scale 0; one with a NaN or an infinity in it has such a scale, and is not a number as a whole.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None


class Embedding(Protocol):
    def __call__(self, out: Tensor, token_ids: Tensor, table: Tensor) -> None:
        """out [T, H] = table [V, H] at token_ids int64 [T]."""


class RmsNorm(Protocol):
    def __call__(self, out: Tensor, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> None:
        """out [T, H] = x / sqrt(mean(x^2) + eps) * (weight [H] + offset) (arXiv 1910.07467). `out` may be `x`.

        The offset is added in fp32: Gemma stores what its scales differ from 1 by.
        """


class AddRmsNorm(Protocol):
    def __call__(
        self, out: Tensor, residual: Tensor, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0
    ) -> None:
        """residual [T, H] += x [T, H] (rounded to dtype); out = rms_norm(residual)."""


class GroupRmsNorm(Protocol):
    def __call__(self, x: Tensor, first: int, groups: int, weight: Tensor, eps: float, offset: float = 0.0) -> None:
        """In x [T, W], the columns from `first` on, in `groups` groups of weight's size each, become rms_norm(group).

        Every group has the same weight [size]. Columns outside are left alone.
        """


class Add(Protocol):
    def __call__(self, residual: Tensor, x: Tensor) -> None:
        """residual [T, H] += x [T, H], rounded to dtype."""


class Scale(Protocol):
    def __call__(self, x: Tensor, factor: float) -> None:
        """x *= factor, each product rounded once."""


class SoftCap(Protocol):
    def __call__(self, x: Tensor, cap: float) -> None:
        """x = cap * tanh(x / cap) (arXiv 2408.00118)."""


class Linear(Protocol):
    def __call__(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """out [T, N] = x [T, K] @ weight [N, K]^T + bias [N].

        `out` may be fp32 where dtype is bfloat16: the logits; a backend without a mixed product rounds to dtype first.
        It may also be some columns of a wider buffer: its rows then lie out.stride(0) apart.
        """


class PrepareGroupQuant(Protocol):
    def __call__(self, weight: GroupQuant) -> GroupQuant:
        """The same weights, arranged once at load as this backend's `GroupLinear` and `GroupEmbedding` want them.

        weight: in layout "rows"; it may be given back as it is. Of what is returned `activation_bits` is 16 where this
        backend rounds no activations.
        """


class GroupLinear(Protocol):
    def __call__(self, out: Tensor, x: Tensor, weight: GroupQuant, bias: Tensor | None) -> None:
        """out [T, N] = x [T, K] @ w^T + bias [N], w the numbers that `weight` [N, K] stands for (see GroupQuant).

        As a sum over groups g: scale * sum(x * code) + minimum * sum(x), all in fp32; codes are exact. A backend may
        take bf16 activations as fixed-point numbers of 16 bits, a group or 128 inputs of it at a time: off by at most
        2^-16 of the largest one's power of two, far less than what bf16 rounded off that one. Where
        `weight.activation_bits` is 8, bf16 activations are taken as `weight.rounded_activations` gives them. `out` and
        `bias` as in `Linear`. x is in the order of the activations, whatever `weight.perm` says.
        """


class GroupEmbedding(Protocol):
    def __call__(self, out: Tensor, token_ids: Tensor, table: GroupQuant) -> None:
        """out [T, H] = rows of the table [V, H] at token_ids int64 [T], computed in fp32 and rounded once to dtype."""


class RotaryKvWrite(Protocol):
    def __call__(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        cache: KVCache,
        metadata: AttentionMetadata,
        num_heads: int,
    ) -> None:
        """Rotates queries and keys in place and writes rotated keys and plain values to the cache.

        qkv [T, (A + 2 C) * D]: queries, keys, values; cos, sin [max_positions, D / 2] in fp32 (fp64 for a float64
        model). Halves are rotated (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), the layout of Hugging Face's Llama
        (arXiv 2104.09864). Where the cache holds codes, a key or value, rounded to dtype, has the scale max(|x|) / 127
        (448, e4m3's largest, for float8) and the codes x / scale, to the nearest and ties to even. Rows with slot -1
        write nothing.
        """


class PagedAttention(Protocol):
    def __call__(
        self,
        out: Tensor,
        qkv: Tensor,
        cache: KVCache,
        metadata: AttentionMetadata,
        scale: float,
        window: int = 0,
        soft_cap: float = 0.0,
    ) -> None:
        """out [T, A * D] = causal softmax attention of each row over its request's blocks (arXiv 2309.06180).

        Queries are the first A * D columns of qkv. With a window above 0 a row sees only its own key and the
        window - 1 before it; with a soft cap above 0 scores are capped as in `SoftCap` before the softmax. The scale of
        a coded key multiplies its scores, that of a coded value its weights: nothing is decoded in memory. The context
        is split at sizes that depend on a row's position alone, so that its sums run in one order whatever else is in
        the step. Padding rows get zeros.
        """


class SiluMul(Protocol):
    def __call__(self, out: Tensor, gate_up: Tensor) -> None:
        """out [T, I] = silu(gate_up[:, :I]) * gate_up[:, I:]."""


class GeluMul(Protocol):
    def __call__(self, out: Tensor, gate_up: Tensor) -> None:
        """out [T, I] = gelu(gate_up[:, :I]) * gate_up[:, I:], gelu in its tanh form (arXiv 1606.08415)."""


class MixtureMlp(Protocol):
    def __call__(
        self,
        out: Tensor,
        x: Tensor,
        router: Tensor,
        gate_up: Sequence[Tensor | GroupQuant],
        down: Sequence[Tensor | GroupQuant],
        top_k: int,
        normalise: bool,
    ) -> None:
        """out [T, H] = sum of p_e * down_e(silu(gate_e(x)) * up_e(x)) over each row's top_k experts (arXiv 2401.04088).

        router [E, H]; gate_up E times [2 I, H]; down E times [H, I]. p = softmax(x @ router^T) over all experts, in
        fp32; with `normalise` the chosen ones are divided by their sum. Of equal ones the lowest expert is chosen.
        """


class GatherRows(Protocol):
    def __call__(self, out: Tensor, x: Tensor, rows: Tensor) -> None:
        """out [S, H] = x [T, H] at rows int64 [S]."""


class ScatterRows(Protocol):
    def __call__(self, out: Tensor, x: Tensor, rows: Tensor, column: int) -> None:
        """out [N, W] at rows int64 [T], columns column to column + H - 1, = x [T, H]; the rest of `out` stays.

        A row below 0 is passed over: its row of x goes nowhere. No two of the others are the same. `out` is contiguous,
        the rows of x may lie x.stride(0) apart. Row numbers are not checked.
        """


class Peaks(Protocol):
    def __call__(self, values: Tensor, ids: Tensor, scores: Tensor) -> None:
        """values [R], ids int64 [R] = the largest number of each row of scores [R, V] and where it stands.

        scores, values fp32 (fp64 for a float64 model). Ties to the lowest id; a row with a NaN in it has the value NaN
        and the id of its first one.
        """


class FilterScores(Protocol):
    def __call__(self, out: Tensor, logits: Tensor, settings: Tensor) -> None:
        """out [R, V] = logits [R, V] / temperature, -inf for tokens that top_k, top_p or min_p drop, in this order.

        settings fp64 [R, 4]: temperature, top_k (0: all), top_p (1: all), min_p (0: none). A row with the temperature 0
        is passed over: its `out` stays as it is. Of a row's tokens that are not -inf, top_k keeps the k largest; top_p
        of these the smallest set, largest first, that holds the share; min_p those with at least the share of the
        largest one's probability. Ties with the last token kept are kept. `out` may be `logits`.

        So that top_p is the same whatever order sums run in, probability counts in whole units: a token has
        round(exp(score - largest) * 2^40) of them, computed in fp64, and a set holds the share when its units come to
        ceil(top_p * all units) or more.
        """


class LogProbabilities(Protocol):
    def __call__(self, out: Tensor, top_values: Tensor, top_ids: Tensor, scores: Tensor, token_ids: Tensor) -> None:
        """out [R] = log softmax of scores [R, V] at token_ids int64 [R]; top_values, top_ids int64 [R, n]: the largest.

        fp32 (fp64 for a float64 model), sums in fp64. Largest first, ties to the lowest id; where fewer than n are
        above -inf the rest is -inf with the id -1. n may be 0. A row whose token id is below 0 is passed over: what
        stands in its outputs stays.
        """


class VerifyMatch(Protocol):
    def __call__(self, out: Tensor, num_accepted: Tensor, drawn: Tensor, drafts: Tensor, starts: Tensor) -> None:
        """Accepts drafts while they equal what the target drew (arXiv 2408.07978), for each of R requests.

        Request r owns rows starts[r] to starts[r + 1] - 1 (int32 [R + 1]) of drawn int64 [S], the target's tokens
        after each of its rows, and of drafts int64 [S]: the draft that follows a row, and -1 in its last row.
        num_accepted int32 [R]: how many of its first drafts equal drawn. out int64 [S]: drawn up to the first that
        differs and with it, or with the token after the last draft; -1 behind.
        """


class VerifyRejection(Protocol):
    def __call__(
        self,
        out: Tensor,
        num_accepted: Tensor,
        scores: Tensor,
        draft_scores: Tensor,
        drafts: Tensor,
        starts: Tensor,
        addresses: Tensor,
    ) -> None:
        """Modified rejection sampling (arXiv 2211.17192, 2302.01318), for each of R requests.

        starts, drafts, out and num_accepted are as in `VerifyMatch`.

        p = softmax(scores [S, V]), q = softmax(draft_scores [S, V]), both fp32 and -inf where a token is out (the last
        row's draft_scores are not read). Row i's draft is accepted where u < p / q, u `kernels.noise.uniform` of its
        addresses [S, 4] (as in `Draw`) with stream ACCEPT; the first that is not is replaced by a draw from the
        normalised positive part of p - q with the noise of stream RESIDUAL; after all, a draw from p with stream
        TARGET. p, q and sums in fp64. Rows past starts[R] are padding.
        """


class Draw(Protocol):
    def __call__(self, out: Tensor, scores: Tensor, addresses: Tensor) -> None:
        """out int64 [R] = for each row the token v that maximises scores [R, V] + noise; ties to the lowest id.

        scores fp32 (fp64 for a float64 model), -inf where a token is out, with at least one finite score a row. The
        noise is `kernels.noise.gumbel` at addresses int64 [R, 4]: seed (its 64 bits), position, sample index, stream.
        Sums run in fp64. This draws exactly from softmax(scores) (the Gumbel-max trick). A row whose stream is below 0
        is passed over: its `out` stays as it is.
        """


@dataclass(frozen=True, slots=True)
class Ops:
    """One implementation of every op, as chosen by `kernels.registry.load_ops`.

    row_alignment: callers pad the rows of a step to a multiple of this; it is what the chosen `linear` needs to treat
    every row alike (1 where any number of rows will do).
    """

    row_alignment: int
    embedding: Embedding
    rms_norm: RmsNorm
    add_rms_norm: AddRmsNorm
    group_rms_norm: GroupRmsNorm
    add: Add
    scale: Scale
    soft_cap: SoftCap
    linear: Linear
    prepare_group_quant: PrepareGroupQuant
    group_linear: GroupLinear
    group_embedding: GroupEmbedding
    rotary_kv_write: RotaryKvWrite
    paged_attention: PagedAttention
    silu_mul: SiluMul
    gelu_mul: GeluMul
    mixture_mlp: MixtureMlp
    gather_rows: GatherRows
    scatter_rows: ScatterRows
    peaks: Peaks
    filter_scores: FilterScores
    log_probabilities: LogProbabilities
    draw: Draw
    verify_match: VerifyMatch
    verify_rejection: VerifyRejection
