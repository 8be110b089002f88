"""The arithmetic of a drafter's training: attention, loss, vocabulary, acceptance, and the unrolled pass."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.train import drafter_attention
from engine.train.drafter_batches import Batch
from engine.train.drafter_eagle import EagleDrafter
from engine.train.drafter_loss import soft_cross_entropy
from engine.train.drafter_measure import coupled_chance, measure, walk
from engine.train.drafter_optimiser import Schedule
from engine.train.drafter_stories import ANSWER
from engine.train.drafter_target import Target, default_feature_layers
from engine.train.drafter_vocabulary import choose_vocabulary, coverage, reduced_ids, vocabulary_tables
from engine.train.source import Source
from tests.engine.stepping import load, prompt_logits
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

CPU = torch.device("cpu")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_both_ways_of_attention_and_their_gradients_agree_with_the_definition(depth: int) -> None:
    length, width = 7, 16
    q, k, v = (random(2, heads, length, width, seed=heads + 10).requires_grad_() for heads in (4, 2, 2))
    own = [[random(2, 2, length, width, seed=100 + 10 * part + step) for step in range(depth)] for part in range(2)]
    for one in (*own[0], *own[1]):
        one.requires_grad_()
    weight = random(2, 4, length, width, seed=77)

    expected = torch.zeros(2, 4, length, width)
    for head in range(4):
        for place in range(length):
            keys = torch.cat([k[:, head // 2, : place + 1], *(one[:, head // 2, place, None] for one in own[0])], dim=1)
            values = torch.cat(
                [v[:, head // 2, : place + 1], *(one[:, head // 2, place, None] for one in own[1])], dim=1
            )
            shares = (torch.einsum("bd,bkd->bk", q[:, head, place], keys) / width**0.5).softmax(-1)
            row = torch.zeros_like(expected)
            row[:, head, place] = 1
            expected = expected + row * torch.einsum("bk,bkd->bd", shares, values)[:, None, None]
    leaves = [q, k, v, *own[0], *own[1]]
    wanted = torch.autograd.grad((expected * weight).sum(), leaves)

    fast = drafter_attention.unrolled_attention(q, k, v, own[0], own[1])
    found = torch.autograd.grad((fast * weight).sum(), leaves)
    wide = [part.repeat_interleave(2, dim=1) for part in (k, v)]
    stacks = [
        torch.stack(part, dim=2).repeat_interleave(2, dim=1) if part else random(2, 4, 0, length, width) for part in own
    ]
    whole = drafter_attention._explicit(q, *wide, *stacks)
    assert torch.allclose(fast, expected, atol=1e-5)
    assert torch.allclose(whole, expected, atol=1e-5)
    for mine, other in zip(found, wanted, strict=True):
        assert torch.allclose(mine, other, atol=1e-5)


def test_the_losss_gradient_is_that_of_the_loss() -> None:
    logits = random(5, 11).requires_grad_()
    wanted = random(5, 11, seed=1).softmax(-1) * 0.8  # some of the mass lies outside the vocabulary
    weights = torch.tensor([0.5, 0.0, 1.0, 2.0, 0.1])
    plain = -(weights[:, None] * wanted * logits.log_softmax(-1)).sum()
    (expected,) = torch.autograd.grad(plain * 3, logits)
    loss = soft_cross_entropy(logits, wanted, weights)
    (found,) = torch.autograd.grad(loss * 3, logits)
    assert torch.allclose(loss, plain, atol=1e-5)
    assert torch.allclose(found, expected, atol=1e-6)


def test_the_vocabulary_holds_what_is_written_most_and_its_tables_lead_back() -> None:
    counts = torch.tensor([0.0, 5.0, 0.0, 9.0, 5.0, 0.0, 1.0])
    chosen = choose_vocabulary(counts, 4, [2])
    assert chosen.tolist() == [1, 2, 3, 4]
    assert coverage(counts, chosen) == pytest.approx(19 / 20)
    tables = vocabulary_tables(chosen, 7)
    assert (torch.arange(4) + tables["d2t"]).tolist() == chosen.tolist()
    assert tables["t2d"].nonzero().flatten().tolist() == chosen.tolist()
    assert reduced_ids(chosen, 7).tolist() == [-1, 0, 1, 2, 3, -1, -1]


def test_the_coupled_chance_is_what_shared_noise_gives() -> None:
    """By drawing: target over 6 tokens, drafter over the first 4 of them."""
    p = (random(6) * 1.5).softmax(-1)
    q = (random(4, seed=3) * 1.5).softmax(-1)
    noise = -torch.log(-torch.log(torch.rand(400_000, 6, generator=torch.Generator().manual_seed(5))))
    drawn = (p.log() + noise).argmax(-1)
    drafted = (q.log() + noise[:, :4]).argmax(-1)
    for token in range(4):
        ours = drawn == token
        share = float((drafted[ours] == token).float().mean())
        found = float(coupled_chance(p[None, :4].log(), q[None].log(), torch.tensor([token])))
        spread = math.sqrt(max(share * (1 - share), 1e-4) / int(ours.sum()))
        assert found == pytest.approx(share, abs=5 * spread)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_checkpoint(tmp_path_factory.mktemp("model"), num_hidden_layers=4)


def target_of(path: Path, dtype: torch.dtype = torch.float32) -> Target:
    return Target(Source(path), default_feature_layers(4), 128, CPU, dtype)


def test_the_targets_states_are_those_of_the_engine(model: Path) -> None:
    loaded = load(model, dtype="float32", max_num_seqs=24, max_model_len=128, num_threads=1, recorded_steps=False)
    prompt = torch.randint(3, 320, (24,), generator=torch.Generator().manual_seed(1))
    seen: dict[int, Tensor] = {}

    def watched(index: int, forward: object) -> object:
        def run(ws: object, delta: Tensor | None, *rest: object) -> None:
            residual = ws.residual[:24]  # type: ignore[attr-defined]
            seen[index] = residual.clone() if delta is None else residual + delta[:24]
            forward(ws, delta, *rest)  # type: ignore[operator]

        return run

    for index, layer in enumerate(loaded.runner.model.layers):  # type: ignore[attr-defined]
        layer.forward = watched(index, layer.forward)
    logits = prompt_logits(loaded.runner, prompt.tolist())
    target = target_of(model)
    assert target.feature_layers == (0, 2, 3)
    states = target.states(prompt[None])
    for feature, layer in zip(states.features[0].chunk(3, dim=-1), target.feature_layers, strict=True):
        assert torch.allclose(feature, seen[layer], atol=1e-4)
    assert torch.allclose(target.logits(states.final[0], target.head), logits, atol=2e-4, rtol=1e-4)
    log_sum, top = target.summary(states.final[0])
    assert torch.allclose(log_sum, logits.logsumexp(-1), atol=1e-3)
    assert torch.equal(top, logits.argmax(-1))


@pytest.mark.parametrize(("depth", "layers"), [(3, (0, 1, 2)), (6, (0, 3, 5)), (7, (2, 3, 4)), (30, (2, 15, 27))])
def test_features_come_from_three_different_layers(depth: int, layers: tuple[int, ...]) -> None:
    assert default_feature_layers(depth) == layers


def batch_of(target: Target, token_ids: Tensor, kinds: int = ANSWER) -> Batch:
    states = target.states(token_ids)
    count, length = token_ids.shape
    rows = torch.arange(count).repeat_interleave(length - 1)
    places = torch.arange(length - 1).repeat(count)
    log_sum, top = target.summary(states.final[rows, places])
    return Batch(
        token_ids,
        states.features.clone(),
        states.final.clone(),
        torch.stack((rows, places), dim=1),
        log_sum.clone(),
        top.clone(),
        token_ids[rows, places + 1],
        torch.full((len(rows),), kinds, dtype=torch.uint8),
    )


def eagle_of(target: Target, chosen: Tensor) -> tuple[EagleDrafter, dict[str, Tensor]]:
    drafter = EagleDrafter(target.config, 128, CPU)
    weights = drafter.initial(target, chosen, torch.Generator().manual_seed(0))
    noisy = {name: tensor + 0.1 * random(*tensor.shape, seed=len(name)) for name, tensor in weights.items()}
    return drafter, noisy


def one_by_one(target: Target, weights: dict[str, Tensor], batch: Batch, base: int, steps: int) -> list[Tensor]:
    """The logits of `steps` drafts behind the tokens 0 to base of row 0, one entry after another, as an engine drafts.

    Written from the layout's description: entry j takes the token at j and the features at j - 1.
    """
    config, layer = target.config, "midlayer."
    heads, groups, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    frequencies = config.rope_theta ** (-torch.arange(0, width, 2) / width)

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean() + config.rms_norm_eps).sqrt() * weights[name]

    def rotated(x: Tensor, place: int) -> Tensor:
        cos, sin = (place * frequencies).cos(), (place * frequencies).sin()
        left, right = x[..., : width // 2], x[..., width // 2 :]
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)

    keys: list[Tensor] = []
    values: list[Tensor] = []
    logits = []
    previous = torch.zeros(config.hidden_size)
    for place in range(base + steps):
        if place <= base:
            features = batch.features[0, place - 1] if place else torch.zeros(3 * config.hidden_size)
            hidden = weights["fc.weight"] @ features
        else:
            hidden = previous
        embedded = norm(target.embedding[batch.token_ids[0, place]], f"{layer}input_layernorm.weight")
        x = torch.cat((embedded, norm(hidden, f"{layer}hidden_norm.weight")))
        q, k, v = (weights[f"{layer}self_attn.{name}_proj.weight"] @ x for name in "qkv")
        keys.append(rotated(k.view(groups, width), place))
        values.append(v.view(groups, width))
        turned = rotated(q.view(heads, width), place)
        attended = []
        for head in range(heads):
            group = head // (heads // groups)
            scores = torch.stack([turned[head] @ key[group] for key in keys]) / width**0.5
            attended.append(scores.softmax(-1) @ torch.stack([value[group] for value in values]))
        hidden = hidden + weights[f"{layer}self_attn.o_proj.weight"] @ torch.cat(attended)
        inner = norm(hidden, f"{layer}post_attention_layernorm.weight")
        gate, up = (weights[f"{layer}mlp.{name}_proj.weight"] @ inner for name in ("gate", "up"))
        previous = hidden + weights[f"{layer}mlp.down_proj.weight"] @ (F.silu(gate) * up)
        if place >= base:
            logits.append(weights["lm_head.weight"] @ norm(previous, "norm.weight"))
    return logits


@pytest.mark.parametrize("base", [0, 1, 5])
def test_an_unrolled_pass_is_what_drafting_one_by_one_gives(model: Path, base: int) -> None:
    target = target_of(model)
    token_ids = torch.randint(3, 320, (1, 12), generator=torch.Generator().manual_seed(2))
    batch = batch_of(target, token_ids)
    drafter, weights = eagle_of(target, torch.arange(50, 150))
    expected = one_by_one(target, weights, batch, base, 4)
    for step, hidden in enumerate(drafter.unroll(weights, target, batch, 4)):
        assert hidden.shape[1] == 12 - step
        found = drafter.logits(weights, hidden[0, base, None], step)[0]
        assert torch.allclose(found, expected[step], atol=1e-3, rtol=1e-3), step


def test_the_rate_rises_stays_and_falls_by_the_passes_that_are_made() -> None:
    schedule = Schedule(1e-3, warm_up=10)
    assert [schedule.rate_at(step, 0.0) for step in (0, 4, 9, 900)] == pytest.approx([1e-4, 5e-4, 1e-3, 1e-3])
    assert [schedule.rate_at(900, made) for made in (0.6, 0.8, 1.0)] == pytest.approx([1e-3, 5.25e-4, 5e-5])


def test_a_walk_expects_what_decoding_by_dice_gives() -> None:
    """lead 1: the chances of a token lie one position before it."""
    chances = torch.rand(3, 12, generator=torch.Generator().manual_seed(8))
    total = torch.zeros(2, 3, dtype=torch.float64)
    walk(total, chances, 2, 11, lead=1)
    dice, found, runs = torch.Generator().manual_seed(9), torch.zeros(2, 3), 20_000
    throws = torch.rand(runs, 12, generator=dice)
    for throw in throws.tolist():
        token = 2
        while token < 11:
            begun = token - 1
            for step in range(min(3, 11 - token)):
                token += 1
                found[1, step] += 1
                if throw[token] >= chances[step, begun]:
                    break
                found[0, step] += 1
            else:
                token += 1
    assert torch.allclose(total.float(), found / runs, atol=0.03)


def test_acceptance_is_counted_along_chains(model: Path) -> None:
    """Against a greedy answer decoded with one-by-one drafts, each from where the last step came to."""
    target = target_of(model)
    token_ids = torch.randint(3, 320, (1, 14), generator=torch.Generator().manual_seed(4))
    batch = batch_of(target, token_ids)
    chosen = torch.arange(3, 320, 2)
    drafter, weights = eagle_of(target, chosen)
    drafts = [[int(chosen[row.argmax()]) for row in one_by_one(target, weights, batch, base, 8)] for base in range(5)]
    for base in range(4, 5):  # the text is made of what the drafter says, so that chains get long
        token_ids[0, base + 1 : base + 4] = torch.tensor(drafts[base][:3])
    batch = batch_of(target, token_ids)
    right = torch.zeros(8)
    asked = torch.zeros(8)
    base = 1
    while base < 13:
        said = one_by_one(target, weights, batch, base, min(8, 13 - base))
        for step, row in enumerate(said):
            base += 1
            asked[step] += 1
            if int(chosen[row.argmax()]) != int(token_ids[0, base]):
                break
            right[step] += 1
        else:
            base += 1
    found = measure(drafter, weights, target, reduced_ids(chosen, 320), [batch])
    expected = [float(one / of) if of else 0.0 for one, of in zip(right, asked, strict=True)]
    assert right.tolist()[:4] == [1, 1, 1, 0]
    assert found.greedy == pytest.approx(expected)
    assert found.positions == 13
    assert found.sampled == [0.0] * 8  # no answer at temperature 1 here
    lengths = 1 + sum(math.prod(expected[: step + 1]) for step in range(8))
    assert found.greedy_length == pytest.approx(lengths)
