"""What the operator can set, from environment variables with the prefix PIZARRA_ and from the command line.

Owns names, defaults and their documentation. Knows nothing of what the parts do with them. Invariant: the command line
writes its choices into the environment before the server's factory runs, so that both read the same values here.
"""

from __future__ import annotations

import ipaddress
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from engine.config import MAX_DRAFTS, SPECULATION_RULES, SPECULATIONS, LoadOptions

ENV_PREFIX = "PIZARRA_"
DEFAULTS = LoadOptions()
ASSETS = Path(__file__).resolve().parent.parent / "assets"


class BindError(Exception):
    """The address may not be listened on. The message says why and what to do."""


def _default_home() -> Path:
    return Path(platformdirs.user_data_dir("pizarra", appauthor=False))


class Settings(BaseSettings):
    """Every setting of the server."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="ignore")

    home: Path = Field(
        default_factory=_default_home, description="Data folder: database, models, logs, lock. Made if it is not there."
    )
    host: str = Field(
        default="127.0.0.1", description="Address to listen on. Beyond loopback only together with api_key."
    )
    port: int = Field(default=7860, ge=0, le=65535, description="Port to listen on; 0 lets the system choose.")
    model: str | None = Field(
        default=None, description="Model id to load after start-up; a catalogue model not on disk is pulled first."
    )
    speculation: Literal[SPECULATIONS] = Field(  # type: ignore[valid-type]
        default="auto", description="How the model of the setting `model` speculates; other loads say it themselves."
    )
    num_speculative_tokens: int = Field(
        default=DEFAULTS.num_speculative_tokens, ge=1, le=MAX_DRAFTS, description="At most so many drafts in a step."
    )
    speculation_rule: Literal[SPECULATION_RULES] = Field(  # type: ignore[valid-type]
        default="match", description="How drafts are accepted: with the same bits, or with the same distribution."
    )
    drafter: str = Field(
        default="", description="The drafter of that model: an id or a path; empty: the one tied to its weights."
    )
    api_key: SecretStr | None = Field(
        default=None, description="When set, every call needs it: as Bearer token, or by logging in at /login."
    )
    allowed_hosts: Annotated[list[str], NoDecode] = Field(
        default=[], description="Further host names this server may be reached by, separated by commas."
    )
    max_waiting_requests: int = Field(
        default=1000,
        ge=0,
        description="How many answers may wait for one engine; a request beyond that is refused with 429.",
    )
    drain_timeout_s: float = Field(
        default=20.0, ge=0, description="How long an unload waits for running requests before it ends them."
    )
    shutdown_timeout_s: float = Field(
        default=5.0, ge=0, description="How long a stopping server lets open responses finish before it cuts them."
    )
    kill_timeout_s: float = Field(
        default=5.0, gt=0, description="How long an engine may take to end after being told, and again after SIGTERM."
    )
    engine_command: str = Field(
        default=f"{shlex.quote(sys.executable)} -m engine.process",
        description="Command line that starts an engine process, for example to put `numactl` in front.",
    )
    jobs_command: str = Field(
        default=f"{shlex.quote(sys.executable)} -m engine.jobs",
        description="Command line that starts long work that needs torch, such as quantising a model.",
    )
    log_level: str = Field(default="INFO", description="DEBUG, INFO, WARNING or ERROR.")

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split(cls, hosts: object) -> object:
        return [name.strip() for name in hosts.split(",") if name.strip()] if isinstance(hosts, str) else hosts

    @field_validator("api_key")
    @classmethod
    def _blank_is_no_key(cls, key: SecretStr | None) -> SecretStr | None:
        return key if key is not None and key.get_secret_value().strip() else None  # `PIZARRA_API_KEY=` in a file

    @field_validator("home")
    @classmethod
    def _absolute(cls, home: Path) -> Path:
        return home.expanduser().absolute()

    @field_validator("log_level")
    @classmethod
    def _known_level(cls, level: str) -> str:
        if level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ValueError(f"log_level={level!r}: known are DEBUG, INFO, WARNING, ERROR")
        return level.upper()

    @property
    def load_options(self) -> LoadOptions:
        """Of the model that is loaded after start-up."""
        names = ("speculation", "num_speculative_tokens", "speculation_rule", "drafter")
        return LoadOptions(**{name: getattr(self, name) for name in names})

    @property
    def url(self) -> str:
        """Where a browser on this machine reaches the server."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def engine_argv(self) -> list[str]:
        return shlex.split(self.engine_command)

    @property
    def jobs_argv(self) -> list[str]:
        return shlex.split(self.jobs_command)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # another name may resolve to anything

    def check_bind(self) -> None:
        """Refuse an address beyond loopback without a key."""
        if not self.loopback and self.api_key is None:
            raise BindError(
                f"listening on {self.host} would open this server to the network without a key. "
                "Set PIZARRA_API_KEY, or listen on 127.0.0.1"
            )
