"""The shape of the package, read from its imports: they point one way, and files stay small."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "ryarn"

# A unit (a file, or a folder with all that is in it) imports from lower layers alone. Units of one
# layer don't know each other, except in an OPEN layer.
LAYERS: dict[str, tuple[str, ...]] = {
    "ground": ("errors", "disk", "trust"),
    "pure": (
        *("positions", "curriculum", "draws", "yarn", "stats", "records", "config", "versions"),
        *("thinking", "processes", "counting"),
    ),
    "method": ("method", "chat"),
    "text": ("sentences",),
    "borders": ("rope", "tasks", "backends", "tiny"),
    "contents": ("recipe", "contract"),
    # `callback` stands below the stages: `train` uses the one that other people's trainers get.
    "models": (
        *("models", "loading", "runs", "callback", "sft", "adapter_readme"),
        *("checkpoints", "faults", "train_files"),
    ),
    "stages": (
        "train",
        "evaluate",
        "answering",
        *("export", "compare", "tune", "report", "paper", "cost", "doctor", "plan"),
        *("preview", "data"),
    ),
    "guests": ("integrations",),
    "door": ("__init__",),
    "command": ("cli", "options", "__main__"),
}
OPEN = {"models", "stages", "command"}
# (unit, what it imports) to the reason why it may, against the order.
UPWARD: dict[tuple[str, str], str] = {}

NUMPY_ONLY = {"errors", "positions", "curriculum", "draws", "yarn", "stats", "method"}
TORCH_FREE = {
    *(*NUMPY_ONLY, "records", "config", "recipe", "cli", "__init__"),
    *(f"compare.{name}" for name in ("stage", "grid", "cells", "choice", "schedule", "estimate")),
    *("compare.forecast", "compare.sharing", "compare.watch", "compare.workers"),
    *(f"tune.{name}" for name in ("stage", "search", "study", "trials", "tuned", "outlook")),
    *("paper.numbers", "paper.expected", "paper.rehearsal"),
    *(f"cost.{name}" for name in ("architectures", "sizes", "memory", "hours", "resources")),
}
HEAVY = {
    "accelerate",
    "datasets",
    "gguf",
    "matplotlib",
    "optuna",
    "pandas",
    "peft",
    "safetensors",
    "scipy",
    "sklearn",
    "torch",
    "transformers",
    "trl",
}

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 7
# "module:function" to the reason why it may have more parameters.
MANY_PARAMETERS: dict[str, str] = {"cli:export": "each is an option of the command"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """One imported module: its full name, and whether it is imported when the file is."""

    module: str
    names: tuple[str, ...]
    at_load: bool
    line: int

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    """Dotted name inside the package: "rope.remap", "tasks", "__init__"."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def unit_of(path: Path) -> str:
    return module_of(path).partition(".")[0]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(node: ast.AST, at_load: bool = True) -> Iterator[Import]:
    """Every import below a node; those in functions and under TYPE_CHECKING run later or never."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, (), at_load, child.lineno)
        elif isinstance(child, ast.ImportFrom):
            assert not child.level, f"line {child.lineno}: write imports in full, not relative"
            names = tuple(alias.name for alias in child.names)
            yield Import(child.module or "", names, at_load, child.lineno)
        else:
            typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            later = typing_only or isinstance(child, Function | ast.Lambda)
            yield from imports(child, at_load and not later)


def known_modules() -> set[str]:
    return {module_of(path) for path in files()}


def own_modules(imported: Import) -> set[str]:
    """The modules of the package that an import names; the root counts as "__init__"."""
    if imported.top != "ryarn":
        return set()
    base = imported.module.removeprefix("ryarn").removeprefix(".")
    full = {f"{base}.{name}".removeprefix(".") for name in imported.names}
    found = full & known_modules()
    constants = imported.names == ("__version__",)
    return found or ({base or "__init__"} if not constants else set())


def layer_of(unit: str) -> int:
    for number, units in enumerate(LAYERS.values()):
        if unit in units:
            return number
    pytest.fail(f"src/ryarn/{unit}: give it a place in LAYERS of {Path(__file__).name}")


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, Function))


def test_imports_point_one_way() -> None:
    wrong = []
    for path in files():
        unit = unit_of(path)
        layer = layer_of(unit)
        is_open = list(LAYERS)[layer] in OPEN
        for imported in imports(tree(path)):
            for target in {module.partition(".")[0] for module in own_modules(imported)} - {unit}:
                other = layer_of(target)
                allowed = other < layer or (other == layer and is_open)
                if not allowed and (unit, target) not in UPWARD:
                    wrong.append(f"{path.name}:{imported.line}: {unit} must not import {target}")
    assert wrong == []


def test_pure_files_load_numpy_and_the_standard_library_alone() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "ryarn"}
    wrong = [
        f"{path.name}:{imported.line}: {imported.module}"
        for path in files()
        if unit_of(path) in NUMPY_ONLY
        for imported in imports(tree(path))
        if imported.at_load and imported.top not in allowed
    ]
    assert wrong == []


def test_torch_free_files_import_no_torch_even_inside_functions() -> None:
    wrong = [
        f"{path.name}:{imported.line}: {imported.module}"
        for path in files()
        if unit_of(path) in NUMPY_ONLY
        for imported in imports(tree(path))
        if imported.top in HEAVY - {"scipy"}
    ]
    assert wrong == []


def reached_at_load(start: str) -> set[Path]:
    """The files that run when a module of the package is imported."""
    by_module = {module_of(path): path for path in files()}
    reached: set[Path] = set()
    waiting = {"__init__", start}
    while waiting:
        module = waiting.pop()
        path = by_module.get(module)
        if path is None or path in reached:
            continue
        reached.add(path)
        waiting.add(module.rpartition(".")[0])
        for imported in imports(tree(path)):
            if imported.at_load:
                waiting |= own_modules(imported)
    return reached


@pytest.mark.parametrize("start", sorted(TORCH_FREE))
def test_what_must_load_fast_reaches_no_heavy_library(start: str) -> None:
    assert start in known_modules()
    wrong = [
        f"{path.relative_to(PACKAGE)}:{imported.line}: {imported.module}"
        for path in reached_at_load(start)
        for imported in imports(tree(path))
        if imported.at_load and imported.top in HEAVY
    ]
    assert wrong == []


def test_only_plots_draws() -> None:
    wrong = [
        f"{path.name}:{imported.line}"
        for path in files()
        for imported in imports(tree(path))
        if imported.top == "matplotlib" and module_of(path) != "report.plots"
    ]
    assert wrong == []


def test_every_module_says_what_it_is() -> None:
    assert [module_of(path) for path in files() if not ast.get_docstring(tree(path))] == []


def test_files_stay_small() -> None:
    sizes = {module_of(path): len(path.read_text().splitlines()) for path in files()}
    assert {name: size for name, size in sizes.items() if size > MAX_FILE_LINES} == {}


def test_functions_stay_small() -> None:
    wrong = []
    for path in files():
        for function in functions(path):
            lines = (function.end_lineno or 0) - function.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                wrong.append(f"{module_of(path)}:{function.name}: {lines} lines")
    assert wrong == []


def test_functions_take_few_parameters() -> None:
    many = set()
    for path in files():
        for function in functions(path):
            listed = function.args
            names = [a.arg for a in (*listed.posonlyargs, *listed.args, *listed.kwonlyargs)]
            if len([name for name in names if name not in {"self", "cls"}]) > MAX_PARAMETERS:
                many.add(f"{module_of(path)}:{function.name}")
    assert many == set(MANY_PARAMETERS)


def test_the_reader_of_imports_sees_what_counts() -> None:
    source = (
        "import torch\n"
        "if TYPE_CHECKING:\n    import trl\n"
        "try:\n    import peft\nexcept ImportError:\n    pass\n"
        "def f():\n    from ryarn.rope import remap\n"
    )
    seen = {(found.top, found.at_load) for found in imports(ast.parse(source))}
    assert seen == {("torch", True), ("trl", False), ("peft", True), ("ryarn", False)}


def test_there_is_a_package_to_read() -> None:
    assert {"errors", "config", "records"} <= known_modules()
