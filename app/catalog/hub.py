"""A model from the Hugging Face hub (or a mirror of it: HF_ENDPOINT), file by file, resumable, checked.

Owns the files' transfer and verification, and the translation of the hub's errors. Knows no catalogue, and leaves the
choice of files to hub_files. Invariant: a file counts as fetched only after its hash matched the hub's.

The transfer is huggingface_hub's own `http_get`, given our partial file: its `hf_hub_download` keeps nothing of a
broken-off transfer (the partial file has a random name and is deleted), so that it could not resume.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # public, not re-exported by name

from app.catalog.download import (
    PullCancelledError,
    PullError,
    Watch,
    check_disk,
    check_hash,
    git_oid_of,
    require_licence,
    sha256_of,
)
from app.catalog.entry import HubSource
from app.catalog.hub_files import HubFile, choose_files
from engine.core.sizing import format_bytes


@dataclass(frozen=True, slots=True)
class HubSnapshot:
    """The files to fetch, at one commit."""

    source: HubSource
    commit: str
    files: tuple[HubFile, ...]
    licence: str
    licence_url: str
    gated: bool

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def inspect_repo(source: HubSource, token: str | None) -> HubSnapshot:
    """Ask the hub what the repository holds and choose the files."""
    with _translated(source):
        info = HfApi(endpoint=_endpoint(), token=token).model_info(
            source.repo, revision=source.revision, files_metadata=True
        )
    available = [_hub_file(sibling) for sibling in info.siblings or ()]
    card: dict[str, Any] = info.card_data.to_dict() if info.card_data else {}  # type: ignore[no-untyped-call]
    named = card.get("license_name") if card.get("license") == "other" else None
    return HubSnapshot(
        source=source,
        commit=str(info.sha),
        files=choose_files(source, available),
        licence=str(named or card.get("license") or ""),
        licence_url=str(card.get("license_link") or f"https://huggingface.co/{source.repo}"),
        gated=bool(info.gated),
    )


def fetch_files(
    snapshot: HubSnapshot, folder: Path, token: str | None, watch: Watch, files: tuple[HubFile, ...]
) -> None:
    """Fetch `files` of the snapshot into `folder`, going on with what an earlier try left there."""
    present = sum(_present_bytes(folder, file) for file in snapshot.files)
    check_disk(folder, snapshot.size - present, snapshot.source.repo)
    before = sum(file.size for file in snapshot.files[: snapshot.files.index(files[0])]) if files else 0
    for file in files:
        _fetch_file(snapshot, file, folder, token, watch, before)
        before += file.size


def _fetch_file(
    snapshot: HubSnapshot, file: HubFile, folder: Path, token: str | None, watch: Watch, before: int
) -> None:
    target = folder / file.local_name
    if target.exists():
        return  # it got this name only after its hash matched
    part = folder / f"{file.local_name}.part"
    if part.exists() and part.stat().st_size > file.size:
        part.unlink()
    bar = _Bar(watch, before, snapshot.size, file)
    url = hf_hub_url(snapshot.source.repo, file.name, revision=snapshot.commit, endpoint=_endpoint())
    with _translated(snapshot.source, part), part.open("ab") as stream:
        bar.set(stream.tell())
        http_get(
            url,
            stream,
            resume_size=stream.tell(),
            headers=build_hf_headers(token=token),
            expected_size=file.size,
            displayed_filename=file.local_name,
            tqdm_class=bar.as_tqdm_class,  # type: ignore[arg-type]
        )
    _verify(part, file, snapshot.source.repo, watch)
    part.replace(target)


def _verify(part: Path, file: HubFile, repo: str, watch: Watch) -> None:
    watch.stage("verify", file.size, file.local_name)
    if file.sha256 is not None:
        check_hash(part, file.sha256, sha256_of(part, watch), repo)
    elif file.git_oid is not None:
        check_hash(part, file.git_oid, git_oid_of(part, watch), repo)


def _present_bytes(folder: Path, file: HubFile) -> int:
    for name in (file.local_name, f"{file.local_name}.part"):
        path = folder / name
        if path.exists():
            return min(path.stat().st_size, file.size)
    return 0


def check_licence(snapshot: HubSnapshot, *, accepted: bool) -> None:
    """A gated repository, or one that names a licence with conditions, needs a yes. Many name none at all."""
    if snapshot.licence or snapshot.gated:
        require_licence(
            snapshot.source.repo,
            snapshot.licence or "stated on its page",
            snapshot.licence_url,
            gated=snapshot.gated,
            accepted=accepted,
        )


def _hub_file(sibling: Any) -> HubFile:
    sha256 = sibling.lfs.sha256 if sibling.lfs else None
    return HubFile(sibling.rfilename, sibling.size or 0, sha256, None if sha256 else sibling.blob_id)


def _endpoint() -> str | None:
    """The hub to ask, read at each pull: a mirror set after start counts too."""
    return os.environ.get("HF_ENDPOINT")


class _Bar:
    """What http_get takes for a progress bar: real bytes of one file, counted into the whole pull."""

    def __init__(self, watch: Watch, before: int, total: int, file: HubFile) -> None:
        self._watch = watch
        self._before = before
        self._total = total
        self._file = file
        self._done = 0

    def as_tqdm_class(self, **_: Any) -> _Bar:
        return self

    def set(self, done: int) -> None:
        self._done = done
        message = f"{self._file.local_name}: {format_bytes(done)} of {format_bytes(self._file.size)}"
        self._watch.report("download", self._before + done, self._total, message)

    def update(self, count: float | None = 1) -> None:
        self.set(self._done + int(count or 0))

    def __enter__(self) -> _Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


@contextmanager
def _translated(source: HubSource, part: Path | None = None) -> Iterator[None]:
    """The hub's errors in words that say what to do."""
    try:
        yield
    except PullCancelledError:
        raise
    except GatedRepoError as error:
        raise PullError(
            f"{source.repo} is gated: ask for access at https://huggingface.co/{source.repo} with your account, then "
            "pull with that account's token (HF_TOKEN, or pizarra pull --token)"
        ) from error
    except RevisionNotFoundError as error:
        raise PullError(f"{source.repo} has no revision {source.revision!r}; name a branch, tag or commit") from error
    except RemoteEntryNotFoundError as error:
        raise PullError(f"{source.repo} has lost a file it lists ({error.response.url}); pull again") from error
    except RepositoryNotFoundError as error:
        raise PullError(
            f"there is no repository {source.repo}, or it is private. Check the spelling; for a private one pull with "
            "a token that may read it (HF_TOKEN, or pizarra pull --token)"
        ) from error
    except HfHubHTTPError as error:
        raise PullError(_http_message(source, error.response.status_code) + _kept(part)) from error
    except HFValidationError as error:
        raise PullError(f"{source.repo} is not a repository name the hub would accept: {error}") from error
    except OfflineModeIsEnabled as error:
        raise PullError("HF_HUB_OFFLINE is set, so that nothing is downloaded; unset it and pull again") from error
    except (httpx2.HTTPError, OSError) as error:
        raise PullError(_network_message(source, error) + _kept(part)) from error


def _http_message(source: HubSource, status: int) -> str:
    if status in (401, 403):
        return (
            f"the hub refuses access to {source.repo} (status {status}): the token is wrong or may not read it. "
            "Check HF_TOKEN (or pizarra pull --token), and that its account was granted access"
        )
    return f"the hub answered {source.repo} with status {status}; try again later"


def _network_message(source: HubSource, error: Exception) -> str:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, OSError):
        return f"the download of {source.repo} broke off: {reason}"
    where = _endpoint() or "https://huggingface.co"
    return f"the connection to {where} failed ({reason}); check the network and the proxy settings, then pull again"


def _kept(part: Path | None) -> str:
    """What of a broken-off file the next pull will go on from."""
    have = part.stat().st_size if part is not None and part.exists() else 0
    if part is None or not have:
        return ""
    return f". {format_bytes(have)} of {part.name.removesuffix('.part')} are kept: pull again to go on from there"
