"""The engines of the proof: loaded as a cell wants them, and kept for the next cell that wants the same.

Owns load options and which engine serves which proposer: one that was loaded for another proposer will do where it has
this one, too, as engines have those that cost nothing. Knows nothing of what is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint import read_checkpoint
from engine.config import LoadOptions
from engine.core.sizing import kv_bytes_per_block
from engine.engine import Engine
from engine.loading import LoadedEngine, LoadError, load_engine
from engine.spec.speculator import Speculator

MAX_K, MAX_MODEL_LEN, NUM_SEQS = 15, 160, 16
TIGHT_BLOCKS, BLOCK_SIZE = 22, 16
POOL_BYTES = 64 << 20
Models = Mapping[str, tuple[Path, dict[str, Any]]]  # by name a checkpoint and load options


@dataclass(frozen=True)
class Kept:
    """A loaded engine. key: model, dtype and way of serving; speculation: what it was loaded for; speculator: its own,
    whatever stands in for it now."""

    key: tuple[str, str, str]
    speculation: str
    loaded: LoadedEngine
    speculator: Speculator


class Engines:
    """Keeps one engine with drafts, and one without."""

    def __init__(self, models: Models, drafters: Mapping[tuple[str, str], Path]) -> None:
        """drafters: by model and proposer, what to load it with."""
        self._models, self._drafters = models, drafters
        self._plain: Kept | None = None
        self._drafting: Kept | None = None

    def plain(self, model: str, dtype: str) -> LoadedEngine:
        """An engine that was loaded without speculation."""
        key = (model, dtype, "roomy")
        if self._plain is None or self._plain.key != key:
            self._plain = None
            self._plain = self._load(key, "off")
        return self._plain.loaded

    def drafting(self, model: str, dtype: str, serving: str, proposer: str) -> LoadedEngine:
        """An engine that has the proposer, with its own speculator in place. LoadError where it cannot be had."""
        key = (model, dtype, serving if serving in ("tight", "chunks") else "roomy")
        kept = self._drafting
        if kept is None or kept.key != key or not self._serves(kept, proposer):
            self._drafting = None
            kept = self._load(key, proposer)
            if proposer not in kept.speculator.proposers:
                raise LoadError("bad_options", f"loaded without {proposer}: {_settings(kept.loaded)}")
            self._drafting = kept
        kept.loaded.engine.speculate_by(kept.speculator)
        return kept.loaded

    def _serves(self, kept: Kept, proposer: str) -> bool:
        """Whether an engine has the proposer as it should be: one with a drafter of its own has to be loaded for it."""
        free = (kept.key[0], proposer) not in self._drafters
        return kept.speculation == proposer or (free and proposer in kept.speculator.proposers)

    def drop(self) -> None:
        """Forgets both: one of them died, and its books cannot be trusted."""
        self._plain = self._drafting = None

    def _load(self, key: tuple[str, str, str], speculation: str) -> Kept:
        model, dtype, serving = key
        path, options = self._models[model]
        wishes: dict[str, Any] = {
            "dtype": dtype,
            "max_model_len": MAX_MODEL_LEN,
            "max_num_seqs": NUM_SEQS,
            "kv_cache_memory_bytes": POOL_BYTES,
            "speculation": speculation,
            "num_speculative_tokens": MAX_K,
            "drafter": str(self._drafters.get((model, speculation), "")),
        } | options
        if serving == "chunks":
            wishes |= {"max_num_batched_tokens": 40, "long_prefill_token_threshold": 7}
        if serving == "tight":
            wishes["kv_cache_memory_bytes"] = self._tight_bytes(path, wishes)
        loaded = load_engine(path, LoadOptions(**wishes), lambda stage, done, total, message: None)
        assert loaded.exactness.level == "bits", loaded.exactness.reason
        return Kept(key, speculation, loaded, loaded.engine.speculator)

    def _tight_bytes(self, path: Path, wishes: Mapping[str, Any]) -> int:
        """A pool that some sixteen requests do not fit into together."""
        size = 4 if wishes["dtype"] == "float32" else 2
        kv_dtype = wishes.get("kv_cache_dtype", "auto")
        return TIGHT_BLOCKS * kv_bytes_per_block(read_checkpoint(path).config, BLOCK_SIZE, size, kv_dtype)


def forget_cached(engine: Engine) -> None:
    """Empties the prefix cache: a cell finds nothing that another one left."""
    for block in engine.pool.blocks:
        engine.pool._forget(block)


def _settings(loaded: LoadedEngine) -> str:
    """What a load says about its speculation."""
    told = (one for one in loaded.settings if "spec" in one.name or "draft" in one.name)
    return "; ".join(f"{one.name}: {one.reason}" for one in told) or "no setting says why"
