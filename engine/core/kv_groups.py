"""KV groups: which layers share a block table, and how many blocks a sequence needs for that.

Full-attention layers need a text's keys and values from its start, sliding ones only the last window of them. Layers of
one kind are divided into groups of equal size; a block holds `block_size` tokens of the layers of one group, the k-th
layer in physical cache k, so that all groups draw blocks of one size from one pool. Owns the division and the
arithmetic of windows; knows nothing of tensors, requests or bytes. Invariant: every layer stands in exactly one group,
and a model whose windows save nothing is one group, as if there were none. (Design, section 4; after vLLM's hybrid KV
cache manager.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import ModelConfig

MAX_GROUPS = 16  # every group has block tables and slots of its own in every step
WORTH_IT = 0.05  # of a sequence's memory: what more groups must save


@dataclass(frozen=True, slots=True)
class KVGroup:
    """The layers of one block table. window: the tokens that they see, their own among them; 0: all."""

    layers: tuple[int, ...]
    window: int = 0

    def blocks_passed(self, num_tokens: int, block_size: int) -> int:
        """The leading blocks of a sequence that no query behind its first `num_tokens` tokens sees."""
        return max(0, num_tokens + 1 - self.window) // block_size if self.window else 0

    def most_blocks(self, num_tokens: int, chunk: int, block_size: int) -> int:
        """The most blocks that a sequence of up to `num_tokens` holds at once, computed `chunk` tokens a step."""
        whole = -(-num_tokens // block_size)
        if not self.window:
            return whole
        return min(whole, -(-(self.window - 1 + chunk) // block_size) + 1)


def kv_groups(config: ModelConfig) -> tuple[KVGroup, ...]:
    """The model's groups, all but the last of each kind of one size; full attention first.

    The size is the one with the fewest groups among those that cost a sequence of the model's own context hardly more
    than the least: a full layer costs the context, a sliding one its window, and the last group of a kind is padded.
    """
    context = config.max_position_embeddings
    windows = config.layer_windows or (0,) * config.num_hidden_layers
    kinds: dict[int, list[int]] = {}
    for layer, window in enumerate(windows):
        kinds.setdefault(window if window < context else 0, []).append(layer)
    widest = 0 if 0 in kinds else max(kinds)
    choices: list[tuple[KVGroup, ...]] = [(KVGroup(tuple(range(config.num_hidden_layers)), widest),)]
    choices += [_divide(kinds, size) for size in range(1, config.num_hidden_layers)]
    costs = {choice: _cost(choice, context) for choice in choices if len(choice) <= MAX_GROUPS}
    least = min(costs.values())
    return min(costs, key=lambda choice: (costs[choice] > least * (1 + WORTH_IT), len(choice), costs[choice]))


def layers_per_group(groups: Sequence[KVGroup]) -> int:
    """How many physical caches there are: the layers of the largest group."""
    return max(len(group.layers) for group in groups)


def layer_places(groups: Sequence[KVGroup]) -> list[tuple[int, int]]:
    """Of each layer, its group and its place in it."""
    places = {layer: (index, place) for index, group in enumerate(groups) for place, layer in enumerate(group.layers)}
    return [places[layer] for layer in sorted(places)]


def most_blocks(groups: Sequence[KVGroup], num_tokens: int, chunk: int, block_size: int) -> int:
    """The most blocks that a sequence of up to `num_tokens` holds at once in all groups."""
    return sum(group.most_blocks(num_tokens, chunk, block_size) for group in groups)


def longest_sequence(groups: Sequence[KVGroup], num_blocks: int, limit: int, chunk: int, block_size: int) -> int:
    """The most tokens, up to `limit`, of a sequence that gets along with `num_blocks`; 0 where none does."""
    low, high = 0, -(-limit // block_size)  # in blocks: `low` fits
    while low < high:
        middle = (low + high + 1) // 2
        if most_blocks(groups, middle * block_size, chunk, block_size) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return min(limit, low * block_size)


def _divide(kinds: dict[int, list[int]], size: int) -> tuple[KVGroup, ...]:
    """Groups of up to `size` layers, neighbours of a kind together."""
    return tuple(
        KVGroup(tuple(layers[first : first + size]), window)
        for window, layers in sorted(kinds.items())
        for first in range(0, len(layers), size)
    )


def _cost(groups: Sequence[KVGroup], context: int) -> int:
    """Layers times tokens that a sequence of `context` tokens holds, padding included."""
    return layers_per_group(groups) * sum(group.window or context for group in groups)
