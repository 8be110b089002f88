"""The files around the code keep their word.

What they name exists, what they promise is so, and what exists is documented. Knows no more of the code than that.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_architecture import PACKAGES, imports, registries, shown, sources

ROOT = Path(__file__).resolve().parents[1]
MODEL_ID = "smollm2-135m-instruct"
BENCHES = (
    "bench",
    "bench-serving",
    "bench-compare",
    "bench-memory",
    "bench-quantise",
    "bench-interchange",
    "bench-speculation",
)
MAKE_TARGETS = ("run", "test", "check", *BENCHES, "proof", "soak", "screenshots", "gpu-check", "clean", "help")
NOT_SETTINGS = {  # read by the scripts and by the kernels, not by the server
    "PIZARRA_TORCH_INDEX",
    "PIZARRA_CHROMIUM",
    "PIZARRA_KERNEL_CACHE",
    "PIZARRA_KERNEL_MARCH",
    "PIZARRA_KERNEL_EMULATE_AMX",
}


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads(text("pyproject.toml"))["project"]
    return table


def requirements() -> list[Requirement]:
    table = project()
    extras = [line for lines in table["optional-dependencies"].values() for line in lines]
    return [Requirement(line) for line in (*table["dependencies"], *extras)]


def pins() -> dict[str, str]:
    lines = [line for line in text("constraints.txt").splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


# --- dependencies ---


@pytest.mark.parametrize("requirement", requirements(), ids=lambda requirement: requirement.name)
def test_a_requirement_is_pinned_within_its_range(requirement: Requirement) -> None:
    pin = pins().get(canonicalize_name(requirement.name))
    assert pin, f"constraints.txt has no line {requirement.name}==VERSION"
    assert requirement.specifier.contains(pin, prereleases=True), f"{requirement} does not allow the pinned {pin}"


def test_the_environment_is_the_pinned_one() -> None:
    """Local version labels aside: torch 2.13.0+cpu is 2.13.0."""
    wrong = []
    for distribution in importlib.metadata.distributions():
        pin = pins().get(canonicalize_name(distribution.name))
        if pin is not None and distribution.version.partition("+")[0] != pin:
            wrong.append(f"{distribution.name} {distribution.version}, pinned {pin}")
    assert not wrong, f"run sh scripts/bootstrap.sh --extra dev: {'; '.join(wrong)}"


def test_what_the_code_imports_is_declared() -> None:
    providers = importlib.metadata.packages_distributions()
    declared: set[str] = {canonicalize_name(Requirement(line).name) for line in project()["dependencies"]}
    declared |= {"starlette"}  # FastAPI's foundation; its version follows FastAPI's
    missing = set()
    for package in PACKAGES:
        for path in sources(package):
            for line, name in imports(path):
                top = name.split(".")[0]
                if top in PACKAGES or top in sys.stdlib_module_names:
                    continue
                if not declared & {canonicalize_name(provider) for provider in providers.get(top, ())}:
                    missing.add(f"{shown(path, line)}: {top} is not among pyproject's dependencies")
    assert not missing, "\n" + "\n".join(sorted(missing))


def test_a_wheel_holds_every_package_and_the_assets() -> None:
    patterns = tomllib.loads(text("pyproject.toml"))["tool"]["setuptools"]["packages"]["find"]["include"]
    assert sorted(patterns) == sorted(f"{name}*" for name in (*PACKAGES, "assets"))


def test_the_console_script_exists() -> None:
    module, _, function = project()["scripts"]["pizarra"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


# --- make, CI ---


@pytest.mark.parametrize("target", MAKE_TARGETS)
def test_make_knows_the_target(target: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module", re.findall(r"-m ((?:bench|scripts)\.\w+)", text("Makefile") + text("scripts/gpu_check.sh"))
)
def test_modules_that_make_runs_exist(module: str) -> None:
    assert ROOT.joinpath(*module.split(".")).with_suffix(".py").exists()


@pytest.mark.parametrize("name", ["README.md", "docs/architecture.md"])
def test_documented_make_targets_exist(name: str) -> None:
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", text(name), re.MULTILINE))
    assert named <= set(MAKE_TARGETS)


def test_ci_runs_the_readmes_test_command_after_the_checks() -> None:
    script = text(".ci/run")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    commands = [line.strip() for line in script.splitlines()]
    assert commands.index("make check") < commands.index("make test")
    assert "make test" in text("README.md")


@pytest.mark.parametrize("script", ["scripts/bootstrap.sh", "scripts/gpu_check.sh"])
def test_shell_scripts_parse(script: str) -> None:
    assert subprocess.run(["/bin/sh", "-n", str(ROOT / script)], check=False).returncode == 0


def test_hooks_run_what_make_check_runs() -> None:
    hooks = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"][0]["hooks"]
    entries = " ".join(hook["entry"] for hook in hooks)
    makefile = text("Makefile")
    for tool in ("ruff check", "ruff format --check", "mypy", "pytest -q tests/test_architecture.py"):
        assert tool in entries
        assert tool in makefile


# --- container and service ---


def docker_lines(instruction: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", " ", text("Dockerfile"))
    return re.findall(rf"^{instruction} (.+)$", joined, re.MULTILINE)


def test_docker_copies_what_exists_and_what_runs_needs() -> None:
    copied = [source for line in docker_lines("COPY") for source in shlex.split(line)[:-1]]
    for source in copied:
        assert (ROOT / source).exists(), f"Dockerfile copies {source}, which is not there"
    assert {f"{name}/" for name in (*PACKAGES, "assets")} <= set(copied)
    ignored = {line.strip("/") for line in text(".dockerignore").splitlines()}
    assert not ignored & {source.strip("/") for source in copied}


def test_docker_installs_as_make_run_does_and_starts_what_it_starts() -> None:
    assert any("scripts/bootstrap.sh" in line for line in docker_lines("RUN"))
    entry, command = (yaml.safe_load(docker_lines(name)[-1]) for name in ("ENTRYPOINT", "CMD"))
    assert f"/{' '.join((*entry, *command))} " in text("Makefile")


def test_docker_is_not_root_and_watches_its_health() -> None:
    assert docker_lines("USER")[-1] != "root"
    assert "/health" in docker_lines("HEALTHCHECK")[0]
    assert docker_lines("VOLUME") == ["/data"]


def test_ports_are_the_servers_own() -> None:
    from app.settings import Settings

    port = str(Settings.model_fields["port"].default)
    compose = yaml.safe_load(text("deploy/compose.yaml"))["services"]["pizarra"]
    assert docker_lines("EXPOSE") == [port]
    assert f":{port}/health" in docker_lines("HEALTHCHECK")[0]
    assert compose["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_compose_builds_this_dockerfile_and_insists_on_a_key() -> None:
    service = yaml.safe_load(text("deploy/compose.yaml"))["services"]["pizarra"]
    assert (ROOT / "deploy" / service["build"]["context"] / "Dockerfile").resolve() == ROOT / "Dockerfile"
    assert service["environment"]["PIZARRA_API_KEY"].startswith("${PIZARRA_API_KEY:?")
    arguments = {line.partition("=")[0] for line in docker_lines("ARG")}
    assert set(service["build"]["args"]) <= arguments


def test_the_unit_starts_what_make_run_starts() -> None:
    unit = text("deploy/pizarra.service")
    start = re.search(r"^ExecStart=/opt/pizarra/(.+)$", unit, re.MULTILINE)
    assert start is not None
    assert start.group(1).replace(".venv/bin", "$(BIN)") in text("Makefile")


def test_the_default_model_is_in_the_catalogue() -> None:
    assert MODEL_ID in text("Makefile")
    assert re.search(rf"""["']?{re.escape(MODEL_ID)}["'\]]""", text("assets/catalog.toml"))


@pytest.mark.parametrize("name", ["Dockerfile", "deploy/compose.yaml", "deploy/pizarra.service", "README.md"])
def test_variables_named_are_settings(name: str) -> None:
    from app.settings import Settings

    known = {f"PIZARRA_{field.upper()}" for field in Settings.model_fields} | NOT_SETTINGS
    assert set(re.findall(r"PIZARRA_[A-Z]+(?:_[A-Z]+)*", text(name))) <= known


# --- documents ---


def test_the_readme_explains_every_setting() -> None:
    from app.settings import Settings

    readme = text("README.md")
    missing = [name for field in Settings.model_fields if f"`{(name := f'PIZARRA_{field.upper()}')}`" not in readme]
    assert not missing, f"README.md says nothing of {', '.join(missing)}"


def test_the_architecture_page_names_every_registry() -> None:
    page = text("docs/architecture.md")
    names = {where.rpartition(".")[2] for where, _ in registries()}
    assert not {name for name in names if f"`{name}`" not in page}


@pytest.mark.parametrize("name", ["README.md", "docs/architecture.md"])
def test_paths_and_links_in_documents_exist(name: str) -> None:
    page = text(name)
    paths = set(
        re.findall(
            rf"`((?:{'|'.join((*PACKAGES, 'assets', 'tests', 'scripts', 'bench', 'docs', 'deploy'))})/[\w./-]*)`", page
        )
    )
    links = {link for link in re.findall(r"\]\(([^)#\s]+)\)", page) if "://" not in link}
    missing = [path for path in paths if not (ROOT / path).exists()]
    missing += [link for link in links if not (ROOT / name).parent.joinpath(link).exists()]
    assert not missing, f"{name} names {', '.join(sorted(missing))}"


def test_the_licence_is_apache_2() -> None:
    licence = text("LICENSE")
    assert "Apache License" in licence
    assert "APPENDIX: How to apply the Apache License to your work." in licence
    assert project()["license"] == "Apache-2.0"
