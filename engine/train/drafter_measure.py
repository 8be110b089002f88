"""How many drafts of a drafter its target accepts, on held-out answers, position by position.

Owns the arithmetic of acceptance under the rule `match`. Knows neither training nor files. Invariant: a position counts
only where all drafts before it were right, and every figure is an exact expectation over the sampling noise: for an
answer drawn at temperature 1 the chance that target and drafter, with the same Gumbel noise, pick the same token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.train.drafter_batches import Batch
from engine.train.drafter_eagle import EagleDrafter
from engine.train.drafter_medusa import MedusaDrafter
from engine.train.drafter_stories import ANSWER, DRAWS, GREEDY
from engine.train.drafter_target import Target

Drafter = EagleDrafter | MedusaDrafter

MOST_DRAFTS = 8
_ROWS = 512
_SAMPLED = next(index for index, (_, temperature, top_p) in enumerate(DRAWS) if temperature == top_p == 1.0)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """greedy, sampled: share of drafts at each place that are accepted if those before them were, along greedy answers
    and along those at temperature 1, as `walk` decodes them. Lengths: mean tokens of a step with that many drafts, 1 +
    accepted. first: share of all held-out positions where drafter and target agree on the likeliest token.
    """

    greedy: list[float]
    sampled: list[float]
    greedy_length: float
    sampled_length: float
    first: float
    positions: int

    def as_json(self) -> dict[str, Any]:
        """For logs and cards."""
        return {
            "greedy": [round(value, 4) for value in self.greedy],
            "temperature_1": [round(value, 4) for value in self.sampled],
            "greedy_mean_length": round(self.greedy_length, 3),
            "temperature_1_mean_length": round(self.sampled_length, 3),
            "first_likeliest_agrees": round(self.first, 4),
            "held_out_positions": self.positions,
            "num_drafts": len(self.greedy),
        }


@torch.inference_mode()
def measure(
    drafter: Drafter, weights: Mapping[str, Tensor], target: Target, ids: Tensor, batches: Sequence[Batch]
) -> Acceptance:
    """weights: in the dtype of the work. ids int64 [V]: reduced id of each token, or -1."""
    depth = drafter.depth or MOST_DRAFTS
    totals = {kind: torch.zeros(2, depth, dtype=torch.float64) for kind in (GREEDY, _SAMPLED)}
    agreed = positions = 0
    for batch in batches:
        chances = torch.full((depth, len(batch.token_ids), batch.token_ids.shape[1]), -1.0)
        for step, hidden in enumerate(drafter.unroll(weights, target, batch, depth)):
            found, same = _step(drafter, weights, target, ids, batch, hidden, step)
            base = batch.learned[:, 1] - step - drafter.lead
            kept = base >= 0
            chances[step][batch.learned[kept, 0].cpu(), base[kept].cpu()] = found[kept].cpu()
            if step == 0:
                agreed, positions = agreed + int(same.sum()), positions + len(same)
        _add(totals, chances, batch, drafter.lead)
    curves = {kind: _curve(total) for kind, total in totals.items()}
    return Acceptance(
        curves[GREEDY][0],
        curves[_SAMPLED][0],
        curves[GREEDY][1],
        curves[_SAMPLED][1],
        agreed / max(1, positions),
        positions,
    )


def _step(
    drafter: Drafter,
    weights: Mapping[str, Tensor],
    target: Target,
    ids: Tensor,
    batch: Batch,
    hidden: Tensor,
    step: int,
) -> tuple[Tensor, Tensor]:
    """For each learned position: the chance that the draft is accepted, and whether the likeliest tokens agree."""
    rows, positions = batch.learned.unbind(1)
    base = (positions - step - drafter.lead).clamp(min=0, max=hidden.shape[1] - 1)
    chosen = (ids >= 0).nonzero().flatten()
    head = target.head[chosen]
    found, same = [], []
    for part in torch.split(torch.arange(len(rows), device=hidden.device), _ROWS):
        drafted = drafter.logits(weights, hidden[rows[part], base[part]], step).float().log_softmax(-1)
        wanted = target.logits(batch.final[rows[part], positions[part]], head) - batch.log_sum[part, None]
        known = ids[batch.next_ids[part]]
        likeliest = drafted.argmax(-1)
        same.append(likeliest == ids[batch.top[part]])
        greedy = (likeliest == known).float()
        sampled = coupled_chance(wanted, drafted, known.clamp(min=0)) * (known >= 0)
        found.append(torch.where(batch.kinds[part] == ANSWER + _SAMPLED, sampled, greedy))
    return torch.cat(found), torch.cat(same)


def coupled_chance(wanted: Tensor, drafted: Tensor, token: Tensor) -> Tensor:
    """[R]: that the draft is `token` [R], given that the target's draw with the same Gumbel noise was.

    wanted, drafted: log probabilities [R, n]; wanted's may sum to less than 1, the rest being tokens that are never
    drafted. For noise g, P(argmax(log p + g) = argmax(log q + g) = x) = 1 / sum_y max(p_y / p_x, q_y / q_x).
    """
    p_x, q_x = wanted.gather(1, token[:, None]), drafted.gather(1, token[:, None])
    rest = (1 - wanted.exp().sum(-1)).clamp(min=0) / p_x[:, 0].exp()
    both = 1 / (torch.maximum(wanted - p_x, drafted - q_x).exp().sum(-1) + rest)
    return (both / p_x[:, 0].exp()).clamp(max=1.0)


def _add(totals: Mapping[int, Tensor], chances: Tensor, batch: Batch, lead: int) -> None:
    """To each kind's [2, depth]: drafts accepted and drafts judged at each place, along every answer of the batch."""
    _, count, length = chances.shape
    kinds = torch.full((count, length + 1), -1, dtype=torch.int64)  # of the token behind each position; -1: none's
    kinds[batch.learned[:, 0].cpu(), batch.learned[:, 1].cpu()] = batch.kinds.cpu().to(torch.int64) - ANSWER
    for row in range(count):
        own, begin = kinds[row].tolist(), 0
        for end in range(1, length + 1):
            if own[end] != own[begin]:
                if own[begin] in totals:
                    walk(totals[own[begin]], chances[:, row], begin + 1, end, lead)
                begin = end


def walk(total: Tensor, chances: Tensor, first: int, end: int, lead: int) -> None:
    """Decodes one answer in expectation, drafting as deep as `chances` [depth, L] goes from every token that is met.

    first: the answer's first token, which its prompt gives. Tokens up to and with `end` are its own. A draft at place s
    behind token t stands for token t + s + 1 and is accepted with chances[s, t - lead]; behind the first that is not,
    or behind all, the target gives one token, and from that the next draft begins. So hard places are begun at more
    often than easy ones, which drafts pass over. Adds to total [2, depth]: drafts accepted, and judged.
    """
    depth = len(chances)
    rows, (accepted, judged) = chances.tolist(), ([0.0] * depth, [0.0] * depth)
    met = [0.0] * (end + depth + 2)  # the chance that decoding stops at a token
    met[first] = 1.0
    for token in range(first, end):
        reach = met[token]
        if reach == 0.0:
            continue
        for step in range(min(depth, end - token)):
            chance = rows[step][token - lead]
            judged[step] += reach
            accepted[step] += reach * chance
            met[token + step + 1] += reach * (1 - chance)
            reach *= chance
        met[token + min(depth, end - token) + 1] += reach
    total += torch.tensor([accepted, judged], dtype=total.dtype)


def _curve(total: Tensor) -> tuple[list[float], float]:
    """Shares by position, and the mean length of a step."""
    shares = [float(right / of) if of else 0.0 for right, of in total.t()]
    length, chance = 1.0, 1.0
    for share in shares:
        chance *= share
        length += chance
    return shares, length
