"""A stand-in for the hub: it speaks its API for one repository, org/name, and can break off, go down, refuse and lie.

Owns the answers. Knows nothing of pulls. Invariant: everything that was asked for is in `requests`, every byte sent
counted in `sent`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "a" * 40


@dataclass
class StandIn:
    """What the stand-in hub holds and how it misbehaves."""

    files: dict[str, bytes]
    card: dict[str, Any] = field(default_factory=lambda: {"license": "apache-2.0"})
    gated: str | bool = False
    token: str | None = None  # required of the client
    cut_after: int | None = None  # bytes of cut_file after which the connection drops, once
    cut_file: str = "model.safetensors"
    down_after_cut: bool = False
    lie: bool = False  # serves other bytes than it announces
    status: int | None = None  # answer everything with this
    error_code: str = ""
    before_body: Callable[[str], object] = lambda name: None  # called with a file's name before its bytes are sent
    requests: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    sent: int = 0

    def describe(self) -> dict[str, Any]:
        siblings = []
        for name, content in self.files.items():
            oid = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
            sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": oid}
            if name.endswith((".safetensors", ".gguf")):
                digest = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(sibling)
        return {"id": "org/name", "sha": COMMIT, "siblings": siblings, "gated": self.gated, "cardData": self.card}


class Handler(BaseHTTPRequestHandler):
    """Answers /api/models/org/name[/revision/REV] and /org/name/resolve/REV/FILE."""

    stand_in: StandIn

    def do_GET(self) -> None:
        hub, path = self.stand_in, unquote(urlsplit(self.path).path)
        hub.requests.append(path)
        if hub.status is not None:
            self._answer(hub.status, b"", {"X-Error-Code": hub.error_code})
        elif hub.token is not None and self.headers.get("authorization") != f"Bearer {hub.token}":
            self._answer(401, b"", {"X-Error-Code": "GatedRepo"})
        elif path == "/api/models/org/name" or path in (
            f"/api/models/org/name/revision/{rev}" for rev in ("v1", COMMIT)
        ):
            self._answer(200, json.dumps(hub.describe()).encode(), {"Content-Type": "application/json"})
        elif path.startswith("/api/models/org/name/revision/"):
            self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith(f"/org/name/resolve/{COMMIT}/"):
            self._file(path.removeprefix(f"/org/name/resolve/{COMMIT}/"))
        else:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _file(self, name: str) -> None:
        hub, content = self.stand_in, self.stand_in.files[name]
        if hub.lie:
            content = bytes(len(content))
        start = 0
        if wanted := self.headers.get("range"):
            hub.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        body = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        hub.before_body(name)
        if hub.cut_after is not None and name == hub.cut_file:
            body, hub.cut_after = body[: hub.cut_after - start], None
            hub.status = 500 if hub.down_after_cut else None
            self.close_connection = True
        self.wfile.write(body)
        hub.sent += len(body)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests are quiet."""
