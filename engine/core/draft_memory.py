"""What a drafter takes of memory, item by item: integers in, integers out.

Owns the byte counts of a drafter's weights, of what it keeps in every KV block, and of its passes' buffers. Does not
know files or tensors. Invariant: an item is what is really allocated at the most.
"""

from __future__ import annotations

from engine.checkpoint.drafter_files import DrafterFile
from engine.checkpoint.info import BlockLayout, GroupScheme
from engine.config import LoadOptions, ModelConfig
from engine.core.memory_plan import DraftNeeds, experts_bytes, rotary_bytes
from engine.core.speculation import MAX_VERIFY_ROWS

FP32_BYTES, INT32_BYTES, INT64_BYTES = 4, 4, 8
EIGHT_BITS = GroupScheme(8, 32, BlockLayout(32, 2))  # what a drafter's matrices become beside a model in codes
_ROW_ALIGNMENT = 16


def kept_rows(options: LoadOptions) -> int:
    """The most drafted tokens of one turn whose distributions are kept for a verification by rejection."""
    return min(MAX_VERIFY_ROWS, options.max_num_seqs * options.num_speculative_tokens)


def in_eight_bits(shape: tuple[int, ...]) -> bool:
    """Whether a drafter's tensor of that shape is quantised where the model's own matrices are."""
    return len(shape) == 2 and shape[1] % EIGHT_BITS.group_size == 0


def draft_needs(
    drafter: DrafterFile,
    target: ModelConfig,
    layers: tuple[int, ...],
    options: LoadOptions,
    dtype_bytes: int,
    in_codes: bool,
) -> DraftNeeds:
    """layers: the target's feature layers. in_codes: whether the drafter's matrices are quantised as they are read."""
    config, size = drafter.info.config, options.block_size
    wide = max(FP32_BYTES, dtype_bytes)
    per_token = len(layers) * target.hidden_size * dtype_bytes + INT64_BYTES  # features, and the token itself
    has_cache = drafter.kind != "medusa"
    if has_cache:
        per_token += 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype_bytes
    return DraftNeeds(
        weights=_weights_bytes(drafter, dtype_bytes, in_codes),
        per_block=size * per_token + INT32_BYTES,
        per_position=rotary_bytes(config, 1, wide) if has_cache else 0,
        buffers=_buffers_bytes(drafter, target, len(layers), options, dtype_bytes),
    )


def _weights_bytes(drafter: DrafterFile, dtype_bytes: int, in_codes: bool) -> int:
    if drafter.kind == "draft_model":
        return drafter.info.weights_bytes(dtype_bytes)
    return sum(
        EIGHT_BITS.nbytes(tensor.shape)
        if in_codes and in_eight_bits(tensor.shape)
        else tensor.num_elements * dtype_bytes
        for tensor in drafter.info.tensors.values()
    )


def _buffers_bytes(
    drafter: DrafterFile, target: ModelConfig, num_features: int, options: LoadOptions, dtype_bytes: int
) -> int:
    """The step buffers of `engine.spec`, for passes of whole rows."""
    config, wide = drafter.info.config, max(FP32_BYTES, dtype_bytes)
    rows, requests = _padded(options.max_num_batched_tokens), _padded(options.max_num_seqs)
    hidden, vocabulary = config.hidden_size, config.vocab_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    logits = requests * (hidden * dtype_bytes + vocabulary * wide)
    sampling = wide * (requests * (vocabulary + 2 * max(vocabulary, target.vocab_size)))  # masks, filtered, spread
    kept = kept_rows(options) * target.vocab_size * wide
    ids = INT64_BYTES * (3 * vocabulary + target.vocab_size)
    if drafter.kind == "medusa":
        return requests * 5 * hidden * dtype_bytes + logits + sampling + kept + ids
    layer = rows * (3 * hidden + 2 * (queries + keys) + 3 * config.intermediate_size) * dtype_bytes
    inputs = rows * (2 * hidden + num_features * target.hidden_size) * dtype_bytes if num_features else 0
    experts = experts_bytes(config, rows, dtype_bytes, wide)
    return layer + inputs + logits + sampling + kept + ids + experts


def _padded(rows: int) -> int:
    return -(-rows // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
