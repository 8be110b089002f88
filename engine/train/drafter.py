"""The job `train-drafter`: text that the model writes, a drafter trained on it, and its folder.

Owns the order of the work and the stages that are told of. Invariant: whatever ends a stretch, text and checkpoint are
kept for the same call to go on from; a drafter that is written bears figures measured on its own weights. A stretch
whose time was over before it had learned anything writes none: its result has no output.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint.fingerprint import weights_fingerprint
from engine.config import GIB
from engine.train.compute import rounded_products
from engine.train.drafter_eagle import EagleDrafter, layer_config
from engine.train.drafter_export import Provenance, read_older, warm_weights, write_drafter
from engine.train.drafter_features import FeatureStore
from engine.train.drafter_loop import Hooks, Loop, LoopOptions, progress_line
from engine.train.drafter_measure import Acceptance, Drafter
from engine.train.drafter_medusa import NUM_HEADS, MedusaDrafter
from engine.train.drafter_optimiser import Schedule
from engine.train.drafter_request import TrainRequest, check_train_model, read_train_request
from engine.train.drafter_state import TrainingState, fresh_state, read_state, save_state
from engine.train.drafter_stories import DRAWS
from engine.train.drafter_stretch import Stretch, TimeOver
from engine.train.drafter_target import Target, default_feature_layers
from engine.train.drafter_text import TextWish, answer_tokens_of, write_text
from engine.train.drafter_turns import turns_of
from engine.train.drafter_vocabulary import choose_vocabulary, count_tokens, coverage
from engine.train.refusal import Refusal
from engine.train.source import Source
from engine.vocab import load_vocab

Report = Callable[[str, int, int, str], None]

DRAFTERS: dict[str, type[EagleDrafter] | type[MedusaDrafter]] = {"eagle": EagleDrafter, "medusa": MedusaDrafter}
_SHORTEST_PARAGRAPH = 40  # characters


def train_drafter(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    """See `engine.jobs`. Returns the figures of the card. Refusal, CheckpointError or VocabError for bad input."""
    request = read_train_request(arguments)
    source = Source(request.model, codes=True)
    check_train_model(request, source.info)
    texts = own_texts(request.texts)
    with rounded_products(request.threads):
        return _Training(request, source, texts, report).run()


def own_texts(path: Path | None) -> tuple[str, ...]:
    """The paragraphs of the operator's file."""
    if path is None:
        return ()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"{path}: the text cannot be read ({error}); give a file of UTF-8 text") from error
    found = tuple(part.strip() for part in text.split("\n\n") if len(part.strip()) >= _SHORTEST_PARAGRAPH)
    if not found:
        raise Refusal(
            f"{path}: has no paragraph of {_SHORTEST_PARAGRAPH} characters or more; divide the text by empty lines, or "
            "leave it out"
        )
    return found


def work_dtype(device: torch.device) -> torch.dtype:
    """bf16 where the device multiplies it fast, else fp32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


class _Training:
    """One request on its way."""

    def __init__(self, request: TrainRequest, source: Source, texts: tuple[str, ...], report: Report) -> None:
        self.request, self.source, self.texts, self.report = request, source, texts, report
        self.vocab = load_vocab(request.model)
        self.fingerprint = weights_fingerprint(source.info)
        self.device = request.torch_device
        self.layers = default_feature_layers(source.config.num_hidden_layers)
        self.identity = _identity(request, self.fingerprint, texts)
        self.learned_from: list[Path] = []
        self.acceptance: Acceptance | None = None

    def run(self) -> dict[str, Any]:
        request = self.request
        request.folder.mkdir(parents=True, exist_ok=True)
        stretch = Stretch(request.folder, request.minutes)
        try:
            return self._work(stretch)
        except TimeOver as over:
            reason = f"the {request.minutes:g} minutes were over while {over}; the same call goes on from there"
            return {"output": "", "finished": False, "reason": reason, "message": reason}
        finally:
            if request.folder.is_dir():  # removed where all is done
                stretch.keep()

    def _work(self, stretch: Stretch) -> dict[str, Any]:
        request = self.request
        state = read_state(request.folder, self.identity, self.device)
        self.learned_from = self._text(stretch)
        stretch.check("the text was complete and the training was about to begin")
        self.report("target", 0, 0, "reading the model's weights")
        target = Target(self.source, self.layers, request.longest, self.device, work_dtype(self.device))
        drafter: Drafter = DRAFTERS[request.kind](self.source.config, request.longest, self.device)
        state = state or self._begin(drafter, target)
        store = FeatureStore(target, request.folder, self.fingerprint, request.feature_gib * GIB)
        loop = Loop(drafter, target, store, state, self._options(stretch))
        self._loop(loop, state, stretch)
        return self._finish(state, stretch)

    def _text(self, stretch: Stretch) -> list[Path]:
        request = self.request
        wish = TextWish(
            request.model,
            self.fingerprint,
            request.folder,
            request.tokens,
            request.seed,
            self.texts,
            request.longest,
            request.answer_tokens,
            request.threads,
        )

        def report(done: int, total: int) -> None:
            self.report("text", done, total, "the model writes what is learned from")
            stretch.check(f"the model wrote text ({done:,} of {total:,} tokens)")

        return write_text(wish, report)

    def _options(self, stretch: Stretch) -> LoopOptions:
        request = self.request
        return LoopOptions(
            Schedule(request.learning_rate),
            steps=request.steps,
            batch_tokens=request.batch_tokens,
            measure_every=request.measure_every,
            passes=request.passes,
            is_over=stretch.is_over,
            seed=request.seed,
        )

    def _begin(self, drafter: Drafter, target: Target) -> TrainingState:
        """First weights: of the target's last layer, or of another drafter as far as it has them."""
        request, config = self.request, self.source.config
        _, counts = count_tokens(self.learned_from, config.vocab_size)
        chosen = choose_vocabulary(counts, request.vocabulary, self.vocab.eos_token_ids)
        weights = drafter.initial(target, chosen, torch.Generator().manual_seed(request.seed))
        if request.warm_start is not None:
            older = read_older(request.warm_start, request.kind, self.source.info, self.fingerprint)
            state = fresh_state(warm_weights(weights, chosen, older.weights, older.chosen), chosen, self.device)
            state.predecessor = older.training
            return state
        return fresh_state(weights, chosen, self.device)

    def _loop(self, loop: Loop, state: TrainingState, stretch: Stretch) -> None:
        log = self.request.folder / "measured.jsonl"

        def measured(found: Acceptance) -> None:
            self.acceptance = found
            place = state.place
            line = {
                "learned": place.learned,
                "tokens": place.tokens,
                "steps": place.steps,
                "seconds": round(place.seconds, 1),
                "loss": round(loop.loss, 4),
                **found.as_json(),
            }
            state.curve.append(line)
            with log.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
            self.report("measured", place.learned, 0, json.dumps(line))

        def save() -> None:
            save_state(self.request.folder, state, self.identity)
            stretch.keep()

        hooks = Hooks(
            report=lambda done, total, message: self.report("train", done, total, message),
            save=save,
            measured=measured,
        )
        loop.run(self.learned_from, hooks)
        if self.acceptance is None:  # nothing was left to do: all passes had been made
            loop.measure(hooks)

    def _finish(self, state: TrainingState, stretch: Stretch) -> dict[str, Any]:
        request, place = self.request, state.place
        assert self.acceptance is not None
        self.report("write", 0, 0, f"writing {request.output.name}")
        made = Provenance(
            request.kind,
            request.model_id or _model_id(self.source),
            self.fingerprint,
            self.layers if request.kind == "eagle" else (),
            self._training(state, stretch.seconds),
            self.acceptance.as_json(),
        )
        nbytes = write_drafter(
            request.output,
            state.tensors["average"],
            state.chosen,
            self.source.info,
            layer_config(self.source.config),
            made,
        )
        done = all(count >= request.passes for count in place.passes)
        if done and request.work is None:
            shutil.rmtree(request.folder)
        first, length = self.acceptance.greedy[0], self.acceptance.greedy_length
        message = (
            f"{request.output}: {100 * first:.1f} % of first drafts are accepted in held-out greedy answers, mean "
            f"length {length:.2f}; {progress_line(place)}" + ("" if done else "; the same call trains on")
        )
        return {
            "output": str(request.output),
            "finished": done,
            "weights_bytes": nbytes,
            **self.acceptance.as_json(),
            "training": dict(made.training),
            "message": message,
        }

    def _training(self, state: TrainingState, whole_s: float) -> dict[str, Any]:
        """The record of how it was trained. whole_s: of all stretches, whatever was done in them."""
        request, place = self.request, state.place
        answers, _ = count_tokens(self.learned_from, self.source.config.vocab_size)
        draws = ", ".join(
            f"{share:.0%} at temperature {temperature:g}" + (f" and top-p {top_p:g}" if top_p < 1 else "")
            for share, temperature, top_p in DRAWS
        )
        how = "through its own chat template" if turns_of(self.vocab).has_template else "without a chat template"
        own = f", and {len(self.texts)} texts of the operator" if self.texts else ""
        figures: dict[str, Any] = {
            "text": f"conversations that the model wrote with itself {how}{own}; answers drawn {draws}.",
            "text_tokens": sum(answer_tokens_of(path) for path in self.learned_from),
            "coverage": round(coverage(answers, state.chosen), 4),
            "learned_positions": place.learned,
            "trained_tokens": place.tokens,
            "steps": place.steps,
            "unrolled_steps": str(NUM_HEADS) if request.kind == "medusa" else place.span("steps"),
            "batch_tokens": place.span("batch_tokens"),
            "learning_rate": place.span("learning_rate"),
            "seconds": round(place.seconds),
            "whole_seconds": round(whole_s),
            "seed": request.seed,
            "dtype": str(work_dtype(self.device)).removeprefix("torch."),
            "machine": f"{self.device.type}, {request.threads} threads, {platform.machine()}, {os.cpu_count()} cores",
            "begun_from": "" if request.warm_start is None else request.warm_start.name,
        }
        figures |= {"predecessor": state.predecessor} if state.predecessor else {}
        return figures | ({"num_heads": NUM_HEADS} if request.kind == "medusa" else {})


def _identity(request: TrainRequest, fingerprint: str, texts: tuple[str, ...]) -> dict[str, Any]:
    """What must be the same for a run to be gone on with."""
    digest = hashlib.blake2b("\n\n".join(texts).encode(), digest_size=16).hexdigest()
    return {
        "model": fingerprint,
        "kind": request.kind,
        "seed": request.seed,
        "vocabulary": request.vocabulary,
        "longest": request.longest,
        "answer_tokens": request.answer_tokens,
        "texts": digest,
        "warm_start": "" if request.warm_start is None else str(request.warm_start.absolute()),
    }


def _model_id(source: Source) -> str:
    name = source.info.metadata.get("_name_or_path") or source.info.metadata.get("general.name")
    return name if isinstance(name, str) and name else (source.path.stem if source.path.is_file() else source.path.name)
