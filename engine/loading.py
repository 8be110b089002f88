"""From a path and options to an engine that takes requests.

Owns the order of a load: read headers, decide, refuse what cannot fit, read weights, reserve the cache, probe. Every
failure leaves as `LoadError` with a kind that the app can act on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from engine.checkpoint import CheckpointError, CheckpointInfo, read_checkpoint
from engine.checkpoint.drafting import Drafting, decide
from engine.checkpoint.fingerprint import weights_fingerprint
from engine.config import ConfigError, EffectiveSetting, LoadOptions
from engine.core.sizing import SizingError
from engine.engine import Engine
from engine.models.registry import UnsupportedModel
from engine.runner.exactness import Exactness, probe
from engine.runner.load_plan import LoadPlan, plan_load
from engine.runner.model_runner import ModelRunner, Progress
from engine.runner.recorded_step import recording_settings
from engine.runner.step_times import measure
from engine.sample.grammar import GrammarCompiler
from engine.spec.controller import SpecController
from engine.spec.costs import StepCosts
from engine.spec.proposers import build_proposers
from engine.spec.speculator import Speculation
from engine.vocab import load_vocab
from kernels.group_quant import ROWS, GroupQuant
from kernels.recording import Eager
from kernels.registry import remarks_on

T = TypeVar("T")
EMULATED = "8, emulated"  # of activation_bits: what the fast kernels would compute, at the reference's speed


class LoadError(RuntimeError):
    """A load that failed. `kind` is that of `engine.protocol.EngineFailed`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine and what is known of it."""

    engine: Engine
    runner: ModelRunner
    info: CheckpointInfo
    plan: LoadPlan
    exactness: Exactness
    settings: list[EffectiveSetting]
    load_s: float
    model_hash: str = ""  # see `weights_fingerprint`
    drafter_hash: str = ""

    @property
    def drafter_bytes(self) -> tuple[int, int]:
        """Bytes of a drafter's weights, and of its buffers; what it keeps in KV blocks is `plan.kv.drafter_bytes`."""
        drafter = self.runner.drafter
        if drafter is None:
            return 0, 0
        return sum(weight.nbytes for weight in drafter.weights()), max(0, drafter.nbytes - self.plan.kv.drafter_bytes)


def load_engine(path: Path, options: LoadOptions, progress: Progress) -> LoadedEngine:
    """Loads a checkpoint. progress(stage, done, total, message) is called as it goes. Raises LoadError."""
    start = time.monotonic()
    progress("start", 0, 0, "reading headers")
    info = _typed(lambda: read_checkpoint(path))
    plan = _typed(lambda: plan_load(info, options, decide(info, options)))
    runner = _typed(lambda: ModelRunner(info, options, plan, progress))
    progress("warm_up", 0, 0, "recording steps, probing exactness")
    runner.prepare()
    exactness = probe(runner, options, plan.kv.num_blocks, plan.kv.max_model_len)
    engine = Engine(
        runner,
        options,
        num_blocks=plan.kv.num_blocks,
        groups=plan.kv.groups,
        max_model_len=plan.kv.max_model_len,
        vocab_size=info.config.vocab_size,
        eos_token_ids=info.config.eos_token_ids,
        model_identity=f"{info.path}\0{info.weights_bytes_on_disk}\0{plan.dtype}\0{plan.kv_dtype}",
        speculation=make_speculation(runner, plan.drafting, len(plan.kv.groups), options),
        grammars=GrammarCompiler(lambda: _token_table(path), info.config.vocab_size, info.config.eos_token_ids),
    )
    settings = [
        *plan.settings,
        *_kernel_settings(runner),
        *_slow_weights(runner),
        *_activation_settings(runner, options.activation_bits),
        *recording_settings(runner.recorder),
        *_drafter_settings(runner),
    ]
    hashes = _typed(lambda: _hashes(info, plan))
    return LoadedEngine(engine, runner, info, plan, exactness, settings, time.monotonic() - start, *hashes)


def _hashes(info: CheckpointInfo, plan: LoadPlan) -> tuple[str, str]:
    drafter = plan.drafting.drafter
    return weights_fingerprint(info), "" if drafter is None else weights_fingerprint(drafter.info)


def make_speculation(runner: ModelRunner, drafting: Drafting, num_groups: int, options: LoadOptions) -> Speculation:
    """Who may propose drafts, and who decides how many, from measured times of steps; nothing learned yet."""
    drafter = "" if drafting.drafter is None else drafting.drafter.kind
    samples = [] if drafting.speculation == "off" else measure(runner, options)
    return Speculation(
        build_proposers(drafting.speculation, drafter, runner, num_groups, drafting.longest),
        "" if drafting.speculation == "off" else drafting.speculation,
        SpecController(options.num_speculative_tokens, StepCosts(samples), drafter),
    )


def _token_table(path: Path) -> list[bytes]:
    """The bytes of every token, read only when a grammar needs them."""
    vocab = load_vocab(path)
    return [vocab.token_bytes(token_id) for token_id in range(vocab.size)]


def _typed(step: Callable[[], T]) -> T:
    """Runs a step of the load; a failure that the operator can act on becomes a LoadError of its kind."""
    try:
        return step()
    except SizingError as error:
        raise LoadError("does_not_fit", str(error)) from error
    except UnsupportedModel as error:
        raise LoadError("unsupported", str(error)) from error
    except CheckpointError as error:
        raise LoadError("bad_checkpoint", str(error)) from error
    except ConfigError as error:
        raise LoadError("bad_options", str(error)) from error
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise LoadError("out_of_memory", f"memory ran out while loading: {error}") from error


def _served_by(runner: ModelRunner, op: str) -> str:
    """The backend that was chosen for an op."""
    return next(choice.backend for choice in runner.kernels if choice.op == op)


def _slow_weights(runner: ModelRunner) -> list[EffectiveSetting]:
    """Matrices in codes that the chosen kernels leave to the reference, which works in layout "rows"."""
    backend = _served_by(runner, "group_linear")
    left = [weight for weight in runner.model.weights() if isinstance(weight, GroupQuant) and weight.layout == ROWS]
    if backend == "reference" or not left:
        return []
    sizes = ", ".join(str(size) for size in sorted({weight.group_size for weight in left}))
    reason = (
        f"{len(left)} quantised matrices have groups of {sizes}; the fast kernels take 16, multiples of 32 and whole "
        "rows. The reference multiplies these, several times slower"
    )
    return [EffectiveSetting("kernel:group_linear", backend, "reference for some", reason)]


def _activation_settings(runner: ModelRunner, wish: str) -> list[EffectiveSetting]:
    """What products of codes round activations to, where the wish does not say it or is not met."""
    codes = [weight for weight in runner.model.weights() if isinstance(weight, GroupQuant)]
    if not codes or wish == "16":
        return []
    if _served_by(runner, "group_linear") == "reference" and runner.dtype == torch.bfloat16:
        return [_emulated_activations(wish)]
    rounding = [weight.bits for weight in codes if weight.activation_bits == 8 and runner.dtype == torch.bfloat16]
    if not rounding:
        why = "only bfloat16 is rounded" if runner.dtype != torch.bfloat16 else "the kernels have nothing faster for it"
        reason = f"{why} on this device, so activations stay as they are"
        return [EffectiveSetting("activation_bits", wish, "16", reason)] if wish == "8" else []
    if len(rounding) < len(codes):
        reason = "products of the other codes are no faster here with activations of 8 bits, so they keep 16"
        return [EffectiveSetting("activation_bits", wish, f"8 for codes of {rounding[0]} bits", reason)]
    reason = "products of codes are faster with activations rounded to 8 bits, 32 at a time; 16 loses nothing"
    return [EffectiveSetting("activation_bits", wish, "8", reason)] if wish == "auto" else []


def _emulated_activations(wish: str) -> EffectiveSetting:
    """What `wish`, "auto" or "8", comes to where the reference multiplies codes by bf16 activations."""
    if wish == "auto":
        reason = "the reference multiplies the codes here, no faster with rounded activations: they stay as they are"
        return EffectiveSetting("activation_bits", wish, "16", reason)
    reason = "the reference rounds activations as the fast kernels do, which costs accuracy here and gains no speed"
    return EffectiveSetting("activation_bits", wish, EMULATED, reason)


def _drafter_settings(runner: ModelRunner) -> list[EffectiveSetting]:
    """Why a drafter's passes are not replayed although the model's steps are."""
    if runner.drafter is None or isinstance(runner.recorder, Eager):
        return []
    faults = runner.drafter.recorder.faults()
    return [EffectiveSetting("recorded_steps of the drafter", "true", "false", "; ".join(faults))] if faults else []


def _kernel_settings(runner: ModelRunner) -> list[EffectiveSetting]:
    """Ops that another backend than the first serves, and what of a backend is not as was wished."""
    replaced = [
        EffectiveSetting(f"kernel:{choice.op}", "the fastest", choice.backend, choice.reason)
        for choice in runner.kernels
        if choice.reason
    ]
    remarks = [EffectiveSetting(each.name, each.wished, each.found, each.reason) for each in remarks_on(runner.kernels)]
    return replaced + remarks
