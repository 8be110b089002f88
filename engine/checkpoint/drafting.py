"""Which proposer a load gets and by which drafter, decided from headers before memory is planned.

Owns the meaning of the options `speculation` and `drafter`, and the refusal of drafters that cannot serve the target.
Reads headers and tokenizers, no weights. Invariant: what was asked for is done, refused, or listed as a setting.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.checkpoint import CheckpointError, CheckpointInfo
from engine.checkpoint.drafter_files import DrafterFile, check_fit, read_drafter, shipped_drafter
from engine.checkpoint.fingerprint import weights_fingerprint
from engine.config import ConfigError, EffectiveSetting, LoadOptions
from engine.core.draft_memory import draft_needs
from engine.core.kv_groups import kv_groups
from engine.core.memory_plan import NO_DRAFTER, DraftNeeds, MemoryPlan, plan_memory
from engine.vocab import VocabError, load_vocab
from engine.vocab_map import VocabMap, VocabMapError, map_vocabs

BY_DRAFTER = ("draft_model", "eagle", "medusa")
PLAIN = "suffix"  # what serves where there is no drafter
OTHER_WEIGHTS = "loaded, for other weights"  # the setting of a drafter that is tied to others than the model's


@dataclass(frozen=True, slots=True)
class Drafting:
    """speculation: a name of `engine.spec.PROPOSERS`, or "off". drafter: None where none is loaded. layers: the
    target's feature layers. group: the KV group whose tables the drafter shares. vocab: of a draft model. in_codes:
    whether the drafter's matrices become codes. longest: the context of a draft model that reads less than the target,
    else None. settings: what differs from the wish."""

    speculation: str
    drafter: DrafterFile | None = None
    layers: tuple[int, ...] = ()
    group: int = 0
    vocab: VocabMap | None = None
    in_codes: bool = False
    longest: int | None = None
    settings: list[EffectiveSetting] = field(default_factory=list)

    def needs(self, target: CheckpointInfo, options: LoadOptions, dtype_bytes: int) -> DraftNeeds:
        """What the drafter takes of memory."""
        if self.drafter is None:
            return NO_DRAFTER
        return draft_needs(self.drafter, target.config, self.layers, options, dtype_bytes, self.in_codes)

    def without_drafter(self, reason: str) -> Drafting:
        """The same, decoding goes on without the drafter."""
        assert self.drafter is not None
        setting = EffectiveSetting("drafter", str(self.drafter.path), "none", reason)
        return replace(self, speculation=PLAIN, drafter=None, vocab=None, longest=None, settings=[setting])


def decide(info: CheckpointInfo, options: LoadOptions) -> Drafting:
    """The proposer of a load. CheckpointError or ConfigError for a drafter that cannot serve this model."""
    wish = options.speculation
    if wish in ("off", "ngram", "suffix"):
        return Drafting(wish, settings=_unused(options, f"speculation={wish!r} drafts without one"))
    if not options.drafter:
        return _with_shipped(info, wish)
    path = Path(options.drafter)

    drafter = read_drafter(path)
    if wish in BY_DRAFTER and drafter.kind != wish:
        raise ConfigError(f"speculation={wish!r}: {path} is a drafter of the kind {drafter.kind!r}; name that instead")
    return _fitted(info, drafter, "hybrid" if wish == "auto" else wish)


def plan_with_drafter(
    info: CheckpointInfo,
    options: LoadOptions,
    drafting: Drafting,
    available_bytes: int,
    dtype_bytes: int,
    device: str,
    runtime_bytes: int,
    reading_bytes: int = 0,
) -> tuple[MemoryPlan, Drafting]:
    """`engine.core.memory_plan.plan_memory` with the drafter, or without it where only the model fits."""

    def plan(drafting: Drafting) -> MemoryPlan:
        weights, needs = info.weights_bytes(dtype_bytes), drafting.needs(info, options, dtype_bytes)
        sizes = (available_bytes, dtype_bytes, device, runtime_bytes, reading_bytes)
        return plan_memory(info.config, weights, options, *sizes, needs)

    found = plan(drafting)
    if found.kv is not None or drafting.drafter is None:
        return found, drafting
    reason = (
        f"it does not fit beside the model: {found.refusal_message()}. The model is loaded without it; with more "
        "memory, or a smaller max_model_len, both would fit"
    )
    alone = plan(drafting.without_drafter(reason))
    return (found, drafting) if alone.kv is None else (alone, drafting.without_drafter(reason))


def _with_shipped(info: CheckpointInfo, wish: str) -> Drafting:
    """The drafter that comes with Pizarra for these weights, where there is one of the kind that is wanted."""
    reason = "there is no drafter for this model"
    try:
        kind = wish if wish in BY_DRAFTER else ""
        path = None if info.config.transformers_class else shipped_drafter(info, kind=kind)
        drafter = None if path is None else read_drafter(path)
        if drafter is not None and wish == "auto" and not drafter.wins:
            reason = f"{drafter.path.name} is a drafter for it, but has not beaten {PLAIN} on the bench; hybrid uses it"
            return Drafting(PLAIN, settings=[EffectiveSetting("speculation", wish, PLAIN, reason)])
        if drafter is not None and (wish not in BY_DRAFTER or drafter.kind == wish):
            return _fitted(info, drafter, "hybrid" if wish == "auto" else wish)
    except CheckpointError as error:
        reason = f"the drafter that comes with this version cannot be read: {error}"
    if wish in BY_DRAFTER:
        raise ConfigError(f"speculation={wish!r}: {reason}; set drafter to the folder of one, or speculation=auto")
    quiet = wish == "auto" and "cannot be read" not in reason
    return Drafting(PLAIN, settings=[] if quiet else [EffectiveSetting("speculation", wish, PLAIN, reason)])


def _unused(options: LoadOptions, why: str) -> list[EffectiveSetting]:
    return [EffectiveSetting("drafter", options.drafter, "none", why)] if options.drafter else []


def _fitted(info: CheckpointInfo, drafter: DrafterFile, speculation: str) -> Drafting:
    """The drafter held against the target."""
    group = next((index for index, group in enumerate(kv_groups(info.config)) if not group.window), None)
    if group is None:
        raise ConfigError(
            f"drafter={str(drafter.path)!r}: every layer of {info.path} has a window, so that no block table holds the "
            "whole text for a drafter; use speculation=suffix"
        )
    if info.config.transformers_class and drafter.kind != "draft_model":
        raise ConfigError(
            f"drafter={str(drafter.path)!r}: transformers computes the layers of {info.path}, and does not hand out "
            f"the hidden states that {drafter.kind} reads; use a draft model, or speculation=suffix"
        )
    check_fit(drafter, info)
    if drafter.kind == "draft_model":
        return _with_context(_with_vocab(Drafting(speculation, drafter, group=group), info, drafter), info, drafter)
    in_codes = any(tensor.scheme is not None for tensor in info.tensors.values())
    settings = list(_told(info, drafter, in_codes=in_codes))
    return Drafting(
        speculation, drafter, drafter.layers_of(info), group, vocab=None, in_codes=in_codes, settings=settings
    )


def _told(info: CheckpointInfo, drafter: DrafterFile, *, in_codes: bool) -> list[EffectiveSetting]:
    settings = []
    if drafter.fingerprint and drafter.fingerprint != weights_fingerprint(info):
        reason = (
            "it was trained for other weights of this shape, and may be right less often; the measured acceptance "
            "decides whether it is used"
        )
        settings.append(EffectiveSetting("drafter", str(drafter.path), OTHER_WEIGHTS, reason))
    if in_codes:
        reason = "the model's matrices are codes, so the drafter's are quantised as they are read, in groups of 32"
        settings.append(EffectiveSetting("drafter dtype", "as stored", "8-bit codes", reason))
    return settings


def _with_vocab(drafting: Drafting, info: CheckpointInfo, drafter: DrafterFile) -> Drafting:
    """A draft model, its vocabulary held against the target's."""
    if drafter.info.config.transformers_class:
        raise ConfigError(
            f"drafter={str(drafter.path)!r}: transformers would have to compute its layers, which is too slow for "
            "drafts; choose a draft model of an architecture with a decoder here"
        )
    try:
        ours, theirs = load_vocab(info.path), load_vocab(drafter.path)
        found = map_vocabs(ours, info.config.vocab_size, theirs, drafter.info.config.vocab_size)
    except VocabError as error:
        raise CheckpointError(f"drafter {drafter.path}: its tokenizer cannot be compared: {error}") from error
    except VocabMapError as error:
        raise CheckpointError(
            f"drafter {drafter.path}: {error}; choose a draft model with the tokenizer of {info.path}"
        ) from error
    settings = list[EffectiveSetting]()
    if found.reason:
        settings.append(EffectiveSetting("drafter tokens", "all", "the shared ones", found.reason))
    return replace(drafting, vocab=found, settings=settings)


def _with_context(drafting: Drafting, info: CheckpointInfo, drafter: DrafterFile) -> Drafting:
    """A draft model that reads less than the target drafts as far as it reads."""
    ours, theirs = info.config.longest_context, drafter.info.config.longest_context
    if theirs >= ours:
        return drafting
    reason = f"its own context is {theirs} tokens, so that texts beyond that are written without its drafts"
    setting = EffectiveSetting("drafter context", f"{ours} tokens", f"{theirs} tokens", reason)
    return replace(drafting, longest=theirs, settings=[*drafting.settings, setting])
