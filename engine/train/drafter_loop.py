"""The training itself: batches in, weights on, acceptance measured as it goes.

Owns the objective, the order of shards, and when a checkpoint or a measurement is due. Knows neither requests nor the
files of a finished drafter. Invariant: after any checkpoint the run goes on as if it had not been stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from engine.train.drafter_batches import Batch, batch_rows, make_batch
from engine.train.drafter_features import FeatureStore
from engine.train.drafter_loss import soft_cross_entropy
from engine.train.drafter_measure import Acceptance, Drafter, measure
from engine.train.drafter_optimiser import Schedule, update
from engine.train.drafter_state import Place, TrainingState
from engine.train.drafter_stretch import TimeOver
from engine.train.drafter_target import Target
from engine.train.drafter_text import Shard, joined, read_shard
from engine.train.drafter_vocabulary import reduced_ids
from engine.train.refusal import Refusal

_SAVE_EVERY_S = 60.0
_LOSS_SHARE = 0.02  # of a new step in the running mean
_HELD_OUT_TOKENS = 12_000  # of answers, to measure with
HELD_OUT_NAME = "held-out"


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """steps: how deep drafts are unrolled; step_decay: what each weighs less than the one before it. likeliest: the
    share of the objective that is the target's likeliest token alone, the rest being its whole distribution.
    measure_every: learned positions between measurements. passes: over every shard, after which training has ended;
    is_over: whether the time of the stretch is.
    """

    schedule: Schedule
    steps: int = 4
    step_decay: float = 0.85
    likeliest: float = 0.3
    batch_tokens: int = 2048
    measure_every: int = 100_000
    passes: int = 3
    is_over: Callable[[], bool] = field(default=lambda: False)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Hooks:
    """report(done, total, message) may raise to stop; save() writes a checkpoint; measured() hears of each curve."""

    report: Callable[[int, int, str], None]
    save: Callable[[], None]
    measured: Callable[[Acceptance], None]


class Loop:
    """A run over shards from `state` on."""

    def __init__(
        self, drafter: Drafter, target: Target, store: FeatureStore, state: TrainingState, options: LoopOptions
    ) -> None:
        self.drafter, self.target, self.store = drafter, target, store
        self.state, self.options = state, options
        self._chosen = state.chosen.to(target.device)
        self._ids = reduced_ids(state.chosen, target.config.vocab_size).to(target.device)
        self._head = target.head[self._chosen]
        self._held: list[Batch] = []
        self.loss, self._seen = 0.0, 0  # running mean, of a learned position and step; over the steps of this stretch

    def run(self, shards: Sequence[Path], hooks: Hooks) -> None:
        """Until the passes are made or the time is over. Raises what `report` raises, behind a checkpoint, and TimeOver
        where the time was too short to learn anything."""
        place, options = self.state.place, self.options
        rate = options.schedule.rate
        place.begin({"steps": options.steps, "batch_tokens": options.batch_tokens, "learning_rate": rate})
        place.passes.extend([0] * (len(shards) - len(place.passes)))
        self._held = self._held_out(shards, hooks)
        begun, over = place.learned, TimeOver("the training was about to begin")
        try:
            while not self.is_done and not options.is_over():
                if place.shard < 0:
                    place.shard, place.batch = place.passes.index(min(place.passes)), 0
                self._shard(shards[place.shard], hooks)
        except TimeOver as error:  # in the states of a shard, which go on from there
            over = error
        if not self.is_done and place.learned == begun:
            hooks.save()
            raise over
        if place.measured_at < place.learned:
            self.measure(hooks)
        hooks.save()

    @property
    def is_done(self) -> bool:
        """Whether all passes are made."""
        return all(count >= self.options.passes for count in self.state.place.passes)

    def measure(self, hooks: Hooks) -> None:
        """The acceptance of the averaged weights, told to `hooks`."""
        weights = self._cast(self.state.tensors["average"])
        self.state.place.measured_at = self.state.place.learned
        hooks.measured(measure(self.drafter, weights, self.target, self._ids, self._held))

    def _shard(self, path: Path, hooks: Hooks) -> None:
        """What is left of one shard."""
        place, options = self.state.place, self.options
        shard = read_shard(path)
        states = self.store.states(path.stem, shard, self._between_groups(hooks, f"features {path.stem}"))
        seed = f"{options.seed}/{place.passes[place.shard]}/{place.shard}"
        batches = batch_rows(shard, options.batch_tokens, seed, held_out=False)
        saved_at = time.monotonic()
        while place.batch < len(batches):
            start = time.monotonic()
            batch = make_batch(shard, states, batches[place.batch])
            if len(batch.learned):
                self._step(batch.to(self.target.device), self._made(place.batch / len(batches)))
            place.batch += 1
            place.tokens += int(shard.lengths[batches[place.batch - 1]].sum())
            place.seconds += time.monotonic() - start
            if place.learned - place.measured_at >= options.measure_every:
                self.measure(hooks)
            self._report(hooks, f"loss {self.loss:.3f}")
            if time.monotonic() - saved_at >= _SAVE_EVERY_S:
                hooks.save()
                saved_at = time.monotonic()
            if options.is_over():
                return
        place.passes[place.shard] += 1
        place.shard, place.batch = -1, 0

    def _between_groups(self, hooks: Hooks, message: str) -> Callable[[int, int], None]:
        """What is called while states are computed: tells of them, and stops where the time is over."""

        def report(done: int, total: int) -> None:
            self._report(hooks, message)
            if self.options.is_over():
                raise TimeOver(f"the model's states of the text were computed ({done:,} of {total:,} tokens)")

        return report

    def _report(self, hooks: Hooks, message: str) -> None:
        place = self.state.place
        done = sum(min(count, self.options.passes) for count in place.passes)
        try:
            hooks.report(done, self.options.passes * len(place.passes), f"{place.learned:,} positions, {message}")
        except BaseException:
            hooks.save()
            raise

    def _cast(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self.target.dtype) for name, tensor in tensors.items()}

    def _made(self, of_shard: float) -> float:
        """The share of all passes that is made, with so much of the shard at hand."""
        place, passes = self.state.place, self.options.passes
        return (sum(min(count, passes) for count in place.passes) + of_shard) / (passes * len(place.passes))

    def _step(self, batch: Batch, made: float) -> None:
        """One step of the optimiser, with the share `made` of all passes behind it."""
        masters = self.state.tensors["weights"]
        leaves = {name: tensor.detach().to(self.target.dtype).requires_grad_() for name, tensor in masters.items()}
        loss = self.objective(leaves, batch)
        torch.autograd.backward(loss)
        gradients = {
            name: (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad).float() for name, leaf in leaves.items()
        }
        update(self.state, gradients, self.options.schedule, made)
        place = self.state.place
        self._seen += 1
        self.loss += max(_LOSS_SHARE, 1 / self._seen) * (float(loss.detach()) - self.loss)
        place.steps += 1
        place.learned += len(batch.learned)

    def objective(self, weights: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Mean soft cross-entropy of a position, over the unrolled steps with their weights; a scalar."""
        options, rows, positions = self.options, *batch.learned.unbind(1)
        wanted = self._wanted(batch)
        total = torch.zeros((), device=wanted.device)
        norm = 0.0
        steps = min(options.steps, self.drafter.depth or options.steps)
        for step, hidden in enumerate(self.drafter.unroll(weights, self.target, batch, steps)):
            base = positions - step - self.drafter.lead
            kept = (base >= 0).nonzero().flatten()
            picked, labels = hidden[rows[kept], base[kept]], wanted
            if len(kept) < len(rows):
                labels = wanted[kept]
            share = options.step_decay**step
            norm += share
            logits = self.drafter.logits(weights, picked, step)
            each = torch.full((len(kept),), share / max(1, len(rows)), device=wanted.device)
            total = total + soft_cross_entropy(logits, labels, each)
        return total / norm

    @torch.no_grad()
    def _wanted(self, batch: Batch) -> Tensor:
        """The target's distribution at each learned position, over the reduced vocabulary, [R, n]."""
        rows, positions = batch.learned.unbind(1)
        scores = self.target.logits(batch.final[rows, positions], self._head)
        wanted = scores.sub_(batch.log_sum[:, None]).exp_().mul_(1 - self.options.likeliest)
        top = self._ids[batch.top]
        known = (top >= 0).nonzero().flatten()
        wanted[known, top[known]] += self.options.likeliest
        return wanted.to(self.target.dtype)

    def _held_out(self, shards: Sequence[Path], hooks: Hooks) -> list[Batch]:
        """Conversations that are measured with, from the first shards."""
        parts: list[Shard] = []
        for path in shards:
            shard = read_shard(path)
            rows = shard.held_out.nonzero().flatten().tolist()
            if rows and sum(part.num_answer_tokens for part in parts) < _HELD_OUT_TOKENS:
                parts.append(shard.part(rows))
        if not parts:
            raise Refusal("the text has no conversations to measure with; ask for more tokens")
        held = joined(parts)
        states = self.store.states(HELD_OUT_NAME, held, self._between_groups(hooks, "held-out features"))
        groups = batch_rows(held, 2 * self.options.batch_tokens, "held-out", held_out=True)
        batches = [make_batch(held, states, rows) for rows in groups]
        return [batch.to(self.target.device) for batch in batches if len(batch.learned)]


def progress_line(place: Place) -> str:
    """Tokens, time and speed, for logs."""
    return f"{place.steps} steps, {place.tokens:,} tokens, {place.tokens / max(1e-9, place.seconds):.0f} tokens/s"
