"""The division of layers into KV groups: published shapes by hand, any other by its properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import ModelConfig
from engine.core.kv_groups import (
    MAX_GROUPS,
    KVGroup,
    kv_groups,
    layer_places,
    layers_per_group,
    longest_sequence,
    most_blocks,
)
from engine.models.registry import MODELS


def config(layers: int, windows: tuple[int, ...] = (), context: int = 8192) -> ModelConfig:
    return ModelConfig(
        architecture="llama",
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=320,
        max_position_embeddings=context,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        layer_windows=windows,
    )


def gemma3(layers: int, window: int) -> tuple[int, ...]:
    """Every sixth layer sees all."""
    return tuple(0 if (index + 1) % 6 == 0 else window for index in range(layers))


# name -> layers, windows, context, and the groups expected as (window, layers).
SHAPES: dict[str, tuple[int, tuple[int, ...], int, list[tuple[int, int]]]] = {
    "llama 3.1 8B": (32, (), 131072, [(0, 32)]),
    "granite 3.3 2B": (40, (), 131072, [(0, 40)]),
    "olmo2 7B": (32, (), 4096, [(0, 32)]),
    "mixtral 8x7B": (32, (), 32768, [(0, 32)]),
    "qwen3 8B": (36, (), 40960, [(0, 36)]),
    "qwen3_moe 30B": (48, (), 40960, [(0, 48)]),
    "smollm3 3B": (36, (), 65536, [(0, 36)]),
    "mistral 7B 0.1": (32, (4096,) * 32, 32768, [(4096, 32)]),
    "mistral 7B 0.3": (32, (), 32768, [(0, 32)]),
    "phi3 mini 4k": (32, (2047,) * 32, 4096, [(2047, 32)]),
    "qwen2, a window as long as the context": (28, (0,) * 21 + (32768,) * 7, 32768, [(0, 28)]),
    "qwen2, a window of an eighth": (28, (0,) * 21 + (4096,) * 7, 32768, [(0, 7)] * 3 + [(4096, 7)]),
    "gemma2 2B": (26, (4096, 0) * 13, 8192, [(0, 13), (4096, 13)]),
    "gemma2 27B": (46, (4096, 0) * 23, 8192, [(0, 23), (4096, 23)]),
    "gemma3_text 270M": (18, gemma3(18, 512), 32768, [(0, 3)] + [(512, 3)] * 5),
    "gemma3_text 1B": (26, gemma3(26, 512), 32768, [(0, 4)] + [(512, 4)] * 5 + [(512, 2)]),
    "gemma3_text 4B": (34, gemma3(34, 1024), 131072, [(0, 5)] + [(1024, 5)] * 5 + [(1024, 4)]),
    "gemma3_text 12B": (48, gemma3(48, 1024), 131072, [(0, 8)] + [(1024, 8)] * 5),
    "gemma3_text 27B": (62, gemma3(62, 1024), 131072, [(0, 10)] + [(1024, 10)] * 5 + [(1024, 2)]),
}


def test_every_family_has_a_shape_here() -> None:
    families = {name.split()[0].rstrip(",") for name in SHAPES}
    assert families <= MODELS.keys()
    assert len(families) == 12


@pytest.mark.parametrize("name", SHAPES)
def test_published_shapes(name: str) -> None:
    layers, windows, context, expected = SHAPES[name]
    groups = kv_groups(config(layers, windows, context))
    assert [(group.window, len(group.layers)) for group in groups] == expected
    for layer, (group, place) in enumerate(layer_places(groups)):
        assert groups[group].layers[place] == layer
        own = windows[layer] if windows else 0
        assert groups[group].window in (own, 0)


@given(st.lists(st.sampled_from([0, 0, 64, 100, 512, 5000]), min_size=1, max_size=40), st.sampled_from([64, 512, 4096]))
def test_any_windows_are_served_and_never_at_a_higher_price_than_no_groups(windows: list[int], context: int) -> None:
    groups = kv_groups(config(len(windows), tuple(windows), context))
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(windows)))
    assert len(groups) <= MAX_GROUPS
    for layer, (group, place) in enumerate(layer_places(groups)):
        assert place < layers_per_group(groups)
        seen = windows[layer] if 0 < windows[layer] < context else context
        assert (groups[group].window or context) >= seen, "a group keeps what its layers see"
    held = sum(group.window or context for group in groups) * layers_per_group(groups)
    assert held <= len(windows) * context
    assert groups == tuple(sorted(groups, key=lambda group: group.window)), "full attention first"


@given(st.integers(0, 200), st.integers(1, 50), st.integers(1, 17))
def test_a_block_is_passed_when_no_later_query_sees_a_token_of_it(num_tokens: int, window: int, size: int) -> None:
    passed = KVGroup((0,), window).blocks_passed(num_tokens, size)
    first_seen = max(0, num_tokens - window + 1)  # by the next query, which stands at position num_tokens
    assert passed * size <= first_seen < (passed + 1) * size
    assert KVGroup((0,)).blocks_passed(num_tokens, size) == 0


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 9), st.integers(0, 7), st.integers(1, 200))
def test_no_sequence_holds_more_than_the_most(window: int, chunk: int, size: int, start: int, length: int) -> None:
    """Computed in whole chunks from any cached beginning, with the passed blocks released after each step."""
    group = KVGroup((0,), window)
    computed, most = min(start * size, length - 1), 0
    computed -= computed % size
    while computed < length:
        end = min(computed + chunk, length)
        most = max(most, -(-end // size) - group.blocks_passed(computed, size))
        computed = end
    assert most <= group.most_blocks(length, chunk, size) <= -(-length // size)


def test_the_longest_sequence() -> None:
    full, window = KVGroup((0,)), KVGroup((1,), 32)
    assert longest_sequence([full], 10, 1000, 16, 16) == 160
    assert longest_sequence([full], 10, 100, 16, 16) == 100
    assert longest_sequence([full], 0, 100, 16, 16) == 0
    assert window.most_blocks(1000, 16, 16) == 4
    assert longest_sequence([window], 4, 10_000, 16, 16) == 10_000, "a window never needs more"
    assert longest_sequence([window], 3, 10_000, 16, 16) == 48
    assert longest_sequence([full, window], 10, 1000, 16, 16) == 96
    assert most_blocks([full, window], 96, 16, 16) == 10
    assert most_blocks([full, window], 97, 16, 16) == 11
