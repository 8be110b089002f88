"""The C++ compilers of this machine, in the order in which they are tried.

Owns how one is called and what tells it from another. Knows nothing of what is compiled.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CALL_TIMEOUT_S = 120
NAMES = ("g++", "c++", "clang++")
NEEDED = "g++ 11 or clang 14, or newer"
INSTALL = f"install {NEEDED} (Debian: apt install g++), for the fast CPU kernels"


class CompilerFault(Exception):
    """A compiler did not do what was asked. The message names it and says why."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """command: the program, and what it is given first."""

    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """As people call it."""
        return shlex.join(self.command)

    def call(self, *arguments: str) -> str:
        """Runs it; what it says. CompilerFault where it fails, or takes longer than CALL_TIMEOUT_S."""
        call = [*self.command, *arguments]
        try:
            done = subprocess.run(call, capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise CompilerFault(f"{self.name} took more than {CALL_TIMEOUT_S} s") from error
        except OSError as error:
            raise CompilerFault(f"{self.name} cannot be run: {error.strerror or error}") from error
        if done.returncode != 0:
            raise CompilerFault(f"{self.name} failed: {_gist(done.stderr)}")
        return done.stdout

    def identity(self) -> str:
        """What changes when another compiler takes its place, an update say."""
        return f"{self.name} {self.call('--version')}"


def compilers() -> list[Compiler]:
    """$CXX, which may hold arguments and is tried even where it is not to be found, and the usual names, each once."""
    wish = shlex.split(os.environ.get("CXX", ""))
    given = [(shutil.which(wish[0]) or wish[0], *wish[1:])] if wish else []
    usual = [(found,) for name in NAMES if (found := shutil.which(name))]
    once: dict[tuple[str, ...], Compiler] = {}
    for command in (*given, *usual):
        once.setdefault(_place(command), Compiler(command))
    return list(once.values())


def _place(command: Sequence[str]) -> tuple[str, ...]:
    """What the names of one compiler share. clang and clang++ are one file that does not do the same by both; and of a
    wrapper such as ccache, which stands for many, the name counts."""
    named, real = Path(command[0]), Path(command[0]).resolve()
    is_compiler = any(kind in real.name for kind in ("++", "clang"))
    return (str(real if is_compiler else named), str("++" in named.name), *command[1:])


def _gist(text: str) -> str:
    """The lines that say what is wrong, of what a compiler wrote; else its end."""
    errors = [line for line in text.splitlines() if "error" in line]
    return "\n".join(errors[:3])[:500] or text.strip()[-500:]
