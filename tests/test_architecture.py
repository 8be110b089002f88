"""The rules of docs/architecture.md, read off the source: who imports whom, how big things get, where arithmetic lives.

Owns the layer table below. Reads syntax trees, so an import inside a function or under TYPE_CHECKING counts like any
other; what only a running interpreter can tell (an import chain that ends in torch) is tried in one, modules blocked.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "engine", "kernels", "db", "ui")
FOLDERS = (*PACKAGES, "scripts", "bench", "tests")
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_TRITON_LINES = 400, 60, 150
GRAB_BAGS = {"utils", "helpers", "common"}

# The modules of engine/ that app/ may import. They never import torch.
TORCH_FREE = re.compile(r"engine(\.(config|cores|protocol|checkpoint(\.\w+)*|vocab\w*|core(\.\w+)*))?")


@dataclass(frozen=True)
class Layer:
    """What one package may import: of ours, modules that fully match `ours`; of others, by name."""

    ours: str
    only: frozenset[str] | None = None  # third-party packages allowed, None: all but `never`
    never: frozenset[str] = frozenset()


LAYERS = {
    "ui": Layer(
        ours=r"ui(\..*)?|app|app\.(schemas|server)(\.\w+)?",
        never=frozenset({"torch", "triton", "transformers", "sqlalchemy", "alembic", "msgspec", "tokenizers"}),
    ),
    "app": Layer(
        ours=rf"app(\..*)?|db(\..*)?|{TORCH_FREE.pattern}",
        never=frozenset({"torch", "triton", "gradio", "transformers", "sqlalchemy", "alembic"}),
    ),
    "engine": Layer(
        ours=r"(engine|kernels)(\..*)?",
        never=frozenset(
            {"fastapi", "starlette", "uvicorn", "gradio", "plotly", "httpx", "sqlalchemy", "alembic", "typer"}
        ),
    ),
    "kernels": Layer(ours=r"kernels(\..*)?", only=frozenset({"torch", "triton"})),
    "db": Layer(ours=r"db(\..*)?", only=frozenset({"sqlalchemy", "alembic"})),
}
DYNAMIC_IMPORTS = {"importlib.import_module", "import_module", "__import__"}
BANNED_EVERYWHERE = {"pickle", "cloudpickle", "dill"}

# Packages that must import on a machine that has torch, triton and transformers only, as the GPU check needs.
BARE_PACKAGES = ("engine/core", "engine/runner", "engine/models", "engine/quant", "engine/sample", "kernels")


@cache
def sources(folder: str) -> tuple[Path, ...]:
    return tuple(sorted((ROOT / folder).rglob("*.py")))


def all_sources() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sources(folder)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path, line: int | None = None) -> str:
    return f"{path.relative_to(ROOT)}" + (f":{line}" if line else "")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every module imported anywhere in the file; `from package import module` names the module."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield node.lineno, name if is_module(name) else base
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in DYNAMIC_IMPORTS:
            yield from ((node.lineno, str(name.value)) for name in node.args[:1] if isinstance(name, ast.Constant))


def report(violations: list[str]) -> None:
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_exists(package: str) -> None:
    assert sources(package), f"{package}/ holds no Python"


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    layer, violations = LAYERS[package], []
    for path in sources(package):
        for line, name in imports(path):
            top = name.split(".")[0]
            if top in PACKAGES:
                allowed = re.fullmatch(layer.ours, name) is not None
            elif top in sys.stdlib_module_names:
                allowed = top not in BANNED_EVERYWHERE
            else:
                allowed = top not in layer.never | BANNED_EVERYWHERE and (layer.only is None or top in layer.only)
            if not allowed:
                violations.append(f"{shown(path, line)}: {package}/ must not import {name}")
    report(violations)


def torch_free_modules() -> list[str]:
    return [name for path in sources("engine") if TORCH_FREE.fullmatch(name := module_name(path))]


def test_torch_free_modules_never_reach_torch() -> None:
    """Follows their imports through our own modules; test_torch_free_modules_import_without_torch tries it out."""
    by_name = {module_name(path): path for path in sources("engine")}
    pending, seen, violations = torch_free_modules(), set[str](), []
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for line, imported in imports(by_name[name]):
            if imported.split(".")[0] in {"torch", "triton", "transformers", "kernels"}:
                violations.append(
                    f"{shown(by_name[name], line)}: torch-free modules reach it, but it imports {imported}"
                )
            elif imported in by_name:
                pending.append(imported)
    report(violations)


def import_with_blocked(modules: list[str], blocked: tuple[str, ...]) -> None:
    """Imports the modules in a fresh interpreter in which the blocked ones are absent."""
    assert modules
    code = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({blocked!r}))\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"with {', '.join(blocked)} absent:\n{done.stderr}"


def test_torch_free_modules_import_without_torch() -> None:
    import_with_blocked(torch_free_modules(), ("torch", "triton", "transformers", "kernels"))


def test_core_imports_without_msgspec() -> None:
    core = [module_name(path) for path in sources("engine/core")]
    import_with_blocked(core, ("torch", "triton", "msgspec", "tokenizers", "numpy"))


def test_gpu_check_modules_import_with_torch_alone() -> None:
    modules = [module_name(path) for package in BARE_PACKAGES for path in sources(package)]
    import_with_blocked(modules, ("msgspec", "xgrammar", "gguf", "fastapi", "gradio", "sqlalchemy"))


def test_app_imports_without_torch() -> None:
    modules = [name for path in sources("app") if not (name := module_name(path)).endswith("__main__")]
    import_with_blocked(modules, ("torch", "triton", "gradio", "transformers", "ui", "kernels"))


def test_hugging_face_kernels_is_not_installed() -> None:
    """Its module has the name of our kernels/, and transformers then imports the wrong one."""
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.distribution("kernels")


def test_files_stay_small() -> None:
    report(
        [
            f"{shown(path)}: {lines} lines, {MAX_FILE_LINES} is the most"
            for path in all_sources()
            if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_FILE_LINES
        ]
    )


def function_cap(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    is_triton = any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)
    return MAX_TRITON_LINES if is_triton else MAX_FUNCTION_LINES


def test_functions_stay_small() -> None:
    violations = []
    for path in all_sources():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines, cap = (node.end_lineno or node.lineno) - node.lineno + 1, function_cap(node)
                if lines > cap:
                    violations.append(f"{shown(path, node.lineno)}: {node.name} has {lines} lines, {cap} is the most")
    report(violations)


def test_no_grab_bags() -> None:
    names = [path for path in all_sources() if GRAB_BAGS & {path.stem, path.parent.name}]
    report([f"{shown(path)}: name it after what it does" for path in names])


def test_modules_say_what_they_own() -> None:
    modules = [path for folder in (*PACKAGES, "scripts", "bench") for path in sources(folder)]
    silent = [path for path in modules if tree(path).body and not ast.get_docstring(tree(path))]
    report([f"{shown(path)}: begins without a docstring" for path in silent])


# --- models/ and layers/ call kernels.ops with buffers; they do no tensor arithmetic of their own ---

ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult)
TENSOR_METHODS = {
    *(
        "add",
        "add_",
        "sub",
        "sub_",
        "mul",
        "mul_",
        "div",
        "div_",
        "pow",
        "neg",
        "rsqrt",
        "sqrt",
        "exp",
        "log",
        "sum",
        "mean",
    ),
    *(
        "matmul",
        "mm",
        "bmm",
        "addmm",
        "einsum",
        "softmax",
        "log_softmax",
        "sigmoid",
        "relu",
        "silu",
        "gelu",
        "tanh",
        "cumsum",
    ),
    *("cat", "stack", "masked_fill", "masked_fill_", "index_select", "scatter_", "float", "half", "bfloat16"),
}
ALLOCATION = {"torch.empty", "torch.zeros", "torch.device"}
LOAD_TIME = {  # run once, before the first step
    "engine/models/hf_check.py",
    "engine/models/hf_loading.py",
    "engine/models/loader.py",
    "engine/layers/rotary.py",
}


def model_code() -> Iterator[Path]:
    for path in (*sources("engine/models"), *sources("engine/layers")):
        if path.relative_to(ROOT).as_posix() not in LOAD_TIME:
            yield path


def torch_calls(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and (called := ast.unparse(node.func)).startswith("torch."):
            if called not in ALLOCATION:
                yield f"{shown(path, node.lineno)}: calls {called}"


def step_arithmetic(path: Path) -> Iterator[str]:
    """Operators and tensor methods inside the functions that a step runs."""
    functions = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        if function.name not in {"forward", "__call__"}:
            continue
        for node in (inner for statement in function.body for inner in ast.walk(statement)):
            if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ARITHMETIC):
                yield f"{shown(path, node.lineno)}: {function.name} computes `{ast.unparse(node)}`"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TENSOR_METHODS:
                if ast.unparse(node.func.value).split(".")[-1] != "ops":
                    yield f"{shown(path, node.lineno)}: {function.name} computes `{ast.unparse(node)}`"


def test_models_and_layers_leave_arithmetic_to_kernels() -> None:
    violations = []
    for path in model_code():
        violations += [f"{shown(path, line)}: imports {name}" for line, name in imports(path) if "functional" in name]
        violations += [*torch_calls(path), *step_arithmetic(path)]
    report(violations)


# --- registries ---

ENTRY = re.compile(rf"({'|'.join(PACKAGES)})(\.\w+)*:\w+(\.\w+)*")


def registries() -> Iterator[tuple[str, str]]:
    """(where, entry) for each "module:attribute" string in a module-level dict named in capitals."""
    for package in PACKAGES:
        for path in sources(package):
            for node in tree(path).body:
                targets = (
                    node.targets
                    if isinstance(node, ast.Assign)
                    else [node.target]
                    if isinstance(node, ast.AnnAssign)
                    else []
                )
                names = [target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper()]
                value = getattr(node, "value", None)
                if not names or value is None or not any(isinstance(inner, ast.Dict) for inner in ast.walk(value)):
                    continue
                for inner in ast.walk(value):
                    if (
                        isinstance(inner, ast.Constant)
                        and isinstance(inner.value, str)
                        and ENTRY.fullmatch(inner.value)
                    ):
                        yield f"{module_name(path)}.{names[0]}", inner.value


def test_registries_of_the_design_exist() -> None:
    names = {where.rpartition(".")[2] for where, _ in registries()}
    assert {"MODELS", "KERNELS", "PAGES"} <= names, f"found only {sorted(names)}"


@pytest.mark.parametrize(("where", "entry"), sorted(set(registries())))
def test_registry_entry_resolves(where: str, entry: str) -> None:
    module, _, attribute = entry.partition(":")
    target: object = importlib.import_module(module)
    for name in attribute.split("."):
        assert hasattr(target, name), f"{where}: {entry}: {module} has no {attribute}"
        target = getattr(target, name)
