"""The command `pizarra`: serve, pull, models, doctor, quantize, train-drafter, generate.

Owns arguments, messages on the terminal and exit codes. Knows nothing of how the work is done. Invariant: what an
operator can get wrong ends with one clear sentence and exit code 1, never with a traceback.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import httpx
import typer
import uvicorn
from pydantic import ValidationError

from app.catalog import Catalog
from app.catalog.download import PullError
from app.catalog.entry import CatalogError
from app.cli_doctor import run_doctor
from app.cli_quantize import run_quantize
from app.cli_train import run_train_drafter
from app.home import DATABASE, HomeError, HomeLock, prepare_home, running_url
from app.logs import log_to_terminal
from app.quantize import METHODS, QuantizeWish
from app.settings import ASSETS, ENV_PREFIX, BindError, Settings
from app.train_drafter import KINDS, TrainWish
from db.errors import StoreError
from db.store import Store
from engine.config import SPECULATION_RULES, SPECULATIONS

SITE_FACTORY = "ui.site:create_site"
GIB = 1024**3

cli = typer.Typer(no_args_is_help=True, add_completion=False, help="A local LLM engine with its own dashboard.")

SpeculationOption = Annotated[
    str | None, typer.Option(help=f"How --model speculates: {', '.join(SPECULATIONS)} [env: PIZARRA_SPECULATION]")
]
DraftsOption = Annotated[
    int | None, typer.Option(help="At most so many drafts in a step [env: PIZARRA_NUM_SPECULATIVE_TOKENS]")
]
RuleOption = Annotated[str | None, typer.Option(help=f"How drafts are accepted: {', '.join(SPECULATION_RULES)}")]
HomeOption = Annotated[Path | None, typer.Option(help="Data folder [env: PIZARRA_HOME]")]


def main() -> None:
    cli()


@cli.command()
def serve(
    model: Annotated[str | None, typer.Option(help="Model to load after start-up; fetched first if need be")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on [env: PIZARRA_HOST]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [env: PIZARRA_PORT]")] = None,
    speculation: SpeculationOption = None,
    num_speculative_tokens: DraftsOption = None,
    speculation_rule: RuleOption = None,
    drafter: Annotated[
        str | None, typer.Option(help="Drafter of --model, by id or path [env: PIZARRA_DRAFTER]")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Start the server and its dashboard."""
    settings = _settings(
        model=model,
        host=host,
        port=port,
        speculation=speculation,
        num_speculative_tokens=num_speculative_tokens,
        speculation_rule=speculation_rule,
        drafter=drafter,
        home=home,
    )
    _check_start(settings)
    listener = _listen(settings)
    os.environ[f"{ENV_PREFIX}PORT"] = str(listener.getsockname()[1])
    url = Settings().url
    print(f"Pizarra is starting at {url} (data: {settings.home}). Stop it with Ctrl+C.", flush=True)
    log_to_terminal()
    config = uvicorn.Config(
        SITE_FACTORY,
        factory=True,
        log_level=settings.log_level.lower(),
        access_log=False,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_timeout_s)),
    )
    server = uvicorn.Server(config)
    server.run(sockets=[listener])
    if not server.started:
        _fail("the server did not start; the lines above say why")


@cli.command()
def pull(
    source: Annotated[
        str, typer.Argument(help="Catalogue id, hf:owner/name[@revision][:Q4_K_M or :file.gguf], or a path")
    ],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a repository")] = None,
    token: Annotated[str | None, typer.Option(envvar="HF_TOKEN", help="Hugging Face token")] = None,
    accept_license: Annotated[bool, typer.Option(help="You have read and accept the model's licence")] = False,
    home: HomeOption = None,
) -> None:
    """Bring a model onto this machine."""
    catalog = _catalog(home)
    try:
        model = asyncio.run(
            catalog.pull(source, _show_progress, revision=revision, token=token, accept_license=accept_license)
        )
    except (CatalogError, PullError, OSError) as error:
        _end_progress()
        _fail(str(error))
    _end_progress()
    if model.error is not None:
        _fail(f"{model.id} was fetched, but it cannot be loaded: {model.error}")
    print(f"{model.id} is on disk: {model.path}")


@cli.command()
def models(home: HomeOption = None) -> None:
    """List the models on disk and those of the catalogue."""
    catalog = _catalog(home)
    local = {model.id: model for model in catalog.local()}
    for model in local.values():
        state = f"broken: {model.error}" if model.error else "on disk"
        print(f"{model.id:<44} {model.size_bytes / GIB:8.2f} GiB  {state}")
    for entry in catalog.entries():
        if entry.id not in local:
            size = f"{entry.size_bytes / GIB:8.2f} GiB" if entry.size_bytes else f"{'?':>8}    "
            note = "" if entry.support == "native" else f" ({entry.support.replace('_', ' ')}: {entry.support_reason})"
            print(f"{entry.id:<44} {size}  available{note}")


@cli.command()
def doctor(
    target: Annotated[str, typer.Argument(help="A model folder or file, or the id of a model on disk")],
    as_json: Annotated[bool, typer.Option("--json", help="The whole report as JSON")] = False,
    home: HomeOption = None,
) -> None:
    """Say what a checkpoint is and whether it can be served here; reads headers only."""
    catalog = _catalog(home)
    try:
        run_doctor(target, catalog, Settings().home, as_json=as_json)
    except (CatalogError, PullError) as error:
        _fail(str(error))


@cli.command()
def quantize(
    model: Annotated[str, typer.Argument(help="Id of a model on disk")],
    format_name: Annotated[str, typer.Option("--format", help=f"What to write: {', '.join(METHODS)}")],
    method: Annotated[str | None, typer.Option(help="How scales are found, awq or gptq; absent: the format's")] = None,
    bits: Annotated[int, typer.Option(min=2, max=8)] = 4,
    group_size: Annotated[int, typer.Option(help="Inputs that share a scale; must divide the model's; -1: all")] = 128,
    desc_act: Annotated[bool, typer.Option("--desc-act", help="GPTQ: the inputs that matter most first")] = False,
    symmetric: Annotated[
        bool, typer.Option("--symmetric", help="GPTQ: the zero is the middle code, as some engines want it")
    ] = False,
    calibration: Annotated[Path | None, typer.Option(help="Text file; the model writes its own text if absent")] = None,
    output_id: Annotated[str | None, typer.Option(help="Id of what is made; MODEL-FORMAT-gGROUP if absent")] = None,
    home: HomeOption = None,
) -> None:
    """Make a 4-bit (or other) model of one on disk; the same command goes on with what Ctrl+C stopped."""
    for name, value, known in (("format", format_name, METHODS), ("method", method, METHODS.values())):
        if value is not None and value not in known:
            _fail(f"--{name} {value!r}: known are {', '.join(dict.fromkeys(known))}")
    catalog = _catalog(home)
    wish = QuantizeWish(
        model,
        format_name,
        method,
        bits,
        group_size,
        desc_act,
        symmetric,
        calibration and calibration.absolute(),
        output_id=output_id,
    )
    run_quantize(wish, Settings(), catalog, _fail)


@cli.command("train-drafter")
def train_drafter(
    model: Annotated[str, typer.Argument(help="Id of a model on disk")],
    kind: Annotated[str, typer.Option(help=f"What to train: {', '.join(KINDS)}")] = "eagle",
    tokens: Annotated[int, typer.Option(min=1000, help="Tokens of answers to learn from")] = 1_000_000,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Minutes to train for now; absent: all passes")
    ] = None,
    passes: Annotated[int, typer.Option(min=1, help="Over the text")] = 3,
    texts: Annotated[Path | None, typer.Option(help="Text file of your own; its paragraphs become questions")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    start_from: Annotated[Path | None, typer.Option("--from", help="Folder of a drafter to begin from")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder to write; absent: among the data folder's drafters")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Train a drafter for speculative decoding; the same command goes on with what Ctrl+C or --minutes stopped."""
    if kind not in KINDS:
        _fail(f"--kind {kind!r}: known are {', '.join(KINDS)}")
    catalog = _catalog(home)
    wish = TrainWish(model, kind, tokens, minutes, passes, texts, seed, start_from, output=output)
    run_train_drafter(wish, Settings(), catalog, _fail)


@cli.command()
def generate(
    model: Annotated[str, typer.Argument(help="Id of a model on disk")],
    prompt: Annotated[str, typer.Argument(help="Text to continue, as it is: no chat template")],
    max_tokens: Annotated[int, typer.Option(min=1)] = 256,
    temperature: Annotated[float, typer.Option(min=0, max=10)] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    speculation: Annotated[bool, typer.Option(help="Drafts: the text is the same, only the speed differs")] = True,
    home: HomeOption = None,
) -> None:
    """Continue a text: by the running server if there is one, else by an engine of its own."""
    settings = _settings(home=home)
    url = running_url(settings.home)
    if url is not None:
        body = {"model": model, "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        wish = {} if speculation else {"speculation": False}
        _ask_server(url, settings, {**body, **wish, "prompt": prompt, "stream": True})
        return
    try:
        path = _catalog(home).resolve(model).path
    except CatalogError as error:
        _fail(str(error))
    command = [sys.executable, "-m", "engine", str(path), prompt, "--max-tokens", str(max_tokens)]
    command += ["--temperature", str(temperature), *(["--seed", str(seed)] if seed is not None else [])]
    command += [] if speculation else ["--speculation", "off"]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


def _ask_server(url: str, settings: Settings, body: dict[str, object]) -> None:
    headers = {}
    if settings.api_key is not None:
        headers["authorization"] = f"Bearer {settings.api_key.get_secret_value()}"
    try:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=None) as response:
            if response.status_code != 200:
                _fail(json.loads(response.read())["error"]["message"])
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        _fail(event["error"]["message"])
                    print(event["choices"][0]["text"], end="", flush=True)
    except httpx.HTTPError as error:
        _fail(f"the server at {url} does not answer: {error}")
    print()


def _settings(**given: object) -> Settings:
    """The settings with the command line's choices, which also go into the environment for the server's factory."""
    for name, value in given.items():
        if value is not None:
            os.environ[f"{ENV_PREFIX}{name.upper()}"] = str(value)
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        _fail(f"setting {ENV_PREFIX}{where.upper()}: {first['msg']} (found {first['input']!r})")


def _check_start(settings: Settings) -> None:
    """Try what the server will need, since what fails inside uvicorn fails with a traceback."""
    try:
        settings.check_bind()
        prepare_home(settings.home)
        lock = HomeLock(settings.home)
        lock.acquire(settings.url)
        try:
            Store(settings.home / DATABASE).close()
        finally:
            lock.release()
    except (BindError, HomeError, StoreError) as error:
        _fail(str(error))


def _catalog(home: Path | None) -> Catalog:
    settings = _settings(home=home)
    try:
        prepare_home(settings.home)
    except HomeError as error:
        _fail(str(error))
    return Catalog(settings.home, ASSETS)


def _listen(settings: Settings) -> socket.socket:
    """The socket, bound before anything is started, so that a port in use is one sentence."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # SO_REUSEADDR lets a second program bind as well, as long as nobody listens
    except OSError as error:
        _fail(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}. "
            "Choose another with --port or PIZARRA_PORT, or end the program that uses it"
        )
    listener.set_inheritable(False)
    return listener


def _show_progress(name: str, done: int = 0, total: int = 0, unit: str = "bytes", message: str = "") -> None:
    if sys.stderr.isatty():
        share = f" {100 * done / total:5.1f} % of {total / 2**20:.0f} MiB" if total and unit == "bytes" else ""
        print(f"\r\033[K{name}{share} {message}"[:200], end="", file=sys.stderr, flush=True)


def _end_progress() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _fail(message: str) -> NoReturn:
    print(f"pizarra: {message}", file=sys.stderr)
    raise typer.Exit(1)
