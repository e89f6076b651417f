"""Packages import only downwards, two read the environment; modules named in strings are there."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

import csrun
from csrun.compiler import compile_directory

ROOT = Path(csrun.__file__).parent
EVERYTHING = frozenset(p.name for p in ROOT.iterdir() if (p / "__init__.py").exists())
CORE = frozenset({"cirh", "executable", "kernels", "records", "context", "site"})
# The table of docs/design.md, top down: a package imports only what its row names, and `base`.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "cli": EVERYTHING,
    "params": CORE | {"estimator", "nn", "data"},
    "tensorflow": CORE | {"estimator", "nn", "compiler", "runtime", "data"},
    "keras": CORE | {"pytorch", "estimator", "nn", "compiler", "runtime", "data"},
    "pytorch": CORE | {"estimator", "advice", "compiler", "runtime", "jobs", "system", "data"},
    "estimator": CORE | {"nn", "advice", "compiler", "runtime", "jobs", "system", "data"},
    "nn": CORE | {"runtime"},
    "advice": CORE | {"launch", "compiler", "runtime", "jobs", "system", "data"},
    "dashboard": frozenset(
        {"watch", "launch", "compiler", "jobs", "executable", "records", "context", "site"}
    ),
    "watch": CORE - {"cirh", "executable", "kernels"} | {"launch", "jobs", "system"},
    "launch": CORE - {"cirh", "executable", "kernels"} | {"jobs", "system"},
    "compiler": frozenset({"cirh", "executable", "kernels", "site"}),
    "runtime": frozenset({"executable", "data", "records", "context"}),
    "jobs": frozenset({"system", "records", "site", "context"}),
    "system": frozenset({"site", "context"}),
    "data": frozenset({"context"}),
    "cirh": frozenset(),
    "kernels": frozenset({"executable"}),
    "executable": frozenset(),
    "records": frozenset(),
    "context": frozenset(),
    "site": frozenset(),
    "base": frozenset(),
}
A_PROTOBUF_PACKAGE = "csrun.tensorflow"  # what a string may name that is no module
READ_THE_ENVIRONMENT = {"site", "context"}


def modules_of(package: str) -> Iterator[Path]:
    return (ROOT / package).rglob("*.py")


def imported(text: str) -> set[str]:
    """Modules that a text imports: annotations' and functions' own imports count, too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def packages_of_csrun_imported(text: str) -> set[str]:
    """Packages of csrun that a module's text imports."""
    parts = [name.split(".") for name in imported(text)]
    return {part[1] for part in parts if part[0] == "csrun" and len(part) > 1}


@cache
def imports_of_modules() -> dict[str, set[str]]:
    """The modules of csrun that each of them imports, by their dotted names."""
    paths = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in ROOT.rglob("*.py")
        if "templates" not in path.parts
    }
    found = {}
    for name, path in paths.items():
        targets = imported(path.read_text())
        known = {each if each in paths else each.rpartition(".")[0] for each in targets}
        found[name] = (known & set(paths)) - {name}
    return found


def imports_within(package: str) -> dict[str, set[str]]:
    """What the modules and packages directly in a package import of each other."""
    below = f"{package}."
    units: dict[str, set[str]] = {}
    for module, targets in imports_of_modules().items():
        if module.startswith(below):
            unit = module.removeprefix(below).split(".")[0]
            inside = {t.removeprefix(below).split(".")[0] for t in targets if t.startswith(below)}
            units.setdefault(unit, set()).update(inside - {unit})
    return units


def cycle_in(units: dict[str, set[str]], known: frozenset[str] = frozenset()) -> list[str]:
    """A cycle of imports between units, apart from imports among the known ones."""
    left = {unit: targets - known if unit in known else targets for unit, targets in units.items()}
    try:
        TopologicalSorter(left).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def packages_imported(node: ast.stmt) -> set[str]:
    """Packages that a statement imports from."""
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    return {(node.module or "").split(".")[0]} if isinstance(node, ast.ImportFrom) else set()


def reads_environment(text: str) -> bool:
    """True when a module's text mentions os.environ or os.getenv."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"}:
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            return any(alias.name in {"environ", "environb", "getenv"} for alias in node.names)
    return False


def modules_named(text: str) -> set[str]:
    """Modules of csrun whose names are strings in a module's text."""
    strings = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    names = {str(value) for value in strings if re.fullmatch(r"csrun(\.\w+)+", str(value))}
    return names - {A_PROTOBUF_PACKAGE}


def test_torch_is_imported_by_the_front_ends_over_it_alone() -> None:
    """Not at a module's import: an adapter may, when it is given what is torch's."""
    importing = [
        path.relative_to(ROOT).parts[0]
        for path in ROOT.rglob("*.py")
        if "templates" not in path.parts  # scripts of `csrun init`, copied and never imported
        for node in ast.parse(path.read_text()).body
        if "torch" in packages_imported(node)
    ]
    assert set(importing) <= {"keras", "pytorch"}


def test_every_package_has_a_row() -> None:
    assert set(MAY_IMPORT) == EVERYTHING


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_imports_go_down(package: str) -> None:
    allowed = MAY_IMPORT[package] | {"base", package}
    wrong = {
        str(path.relative_to(ROOT)): packages_of_csrun_imported(path.read_text()) - allowed
        for path in modules_of(package)
    }
    assert not {path: packages for path, packages in wrong.items() if packages}


PACKAGES = sorted(
    ".".join(path.parent.relative_to(ROOT.parent).parts)
    for path in ROOT.rglob("__init__.py")
    if "templates" not in path.parts and path.parent != ROOT
)
# Cycles that stand, of annotations and of functions' own imports.
CYCLES = {
    "csrun.cirh": frozenset({"algorithms", "backward", "builder", "ops"}),
    "csrun.nn": frozenset(
        {"elementwise", "functions", "optimizer", "shapes", "summary", "tensor", "tracer"}
    ),
    "csrun.pytorch.record": frozenset(  # the recorder, and what records for it
        {"backward", "functions", "in_place", "recorder", "traced"}
    ),
}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_within_a_package_have_no_cycle(package: str) -> None:
    assert not cycle_in(imports_within(package), CYCLES.get(package, frozenset()))


@pytest.mark.parametrize("package", CYCLES)
def test_the_cycles_that_are_excepted_are_there(package: str) -> None:
    units = imports_within(package)
    assert cycle_in({unit: units[unit] & CYCLES[package] for unit in CYCLES[package]})


def test_a_cycle_is_found() -> None:
    circle = {"a": {"b"}, "b": {"c"}, "c": {"b"}}
    assert set(cycle_in(circle)) == {"b", "c"}
    assert not cycle_in(circle, frozenset({"b", "c"}))
    assert not cycle_in({"a": {"b", "c"}, "b": {"c"}})


@pytest.mark.parametrize("package", sorted(set(MAY_IMPORT) - READ_THE_ENVIRONMENT))
def test_the_environment_is_read_in_two_packages(package: str) -> None:
    assert not [p for p in modules_of(package) if reads_environment(p.read_text())]


def test_every_module_named_in_a_string_imports() -> None:
    """They are imported in another process, in a job: a move would break them in silence."""
    named = set().union(*(modules_named(path.read_text()) for path in ROOT.rglob("*.py")))
    assert {"csrun.runtime.roles.wafer", "csrun.launch.local", "csrun.estimator"} <= named
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    run = [sys.executable, "-c", code, *sorted(named)]
    assert subprocess.run(run, capture_output=True, text=True).stderr == ""


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("csrun.cli.csrun_wse, csrun.launch.local", "numpy xdsl llvmlite torch"),
        ("csrun.estimator, csrun.nn, csrun.data", "torch tensorflow keras tf_keras"),
        ("csrun.keras, cerebras.tf.cs_model_to_estimator", "torch tensorflow keras tf_keras"),
        ("cerebras_torch, cerebras.framework.torch", "tensorflow keras tf_keras"),
        ("csrun.runtime.roles.wafer", "csrun.compiler csrun.cirh xdsl torch"),
        ("csrun.runtime.roles.memoryx", "csrun.compiler csrun.cirh xdsl torch"),
        ("csrun.runtime.roles.streamer", "csrun.compiler csrun.cirh xdsl torch"),
    ],
)
def test_a_process_imports_nothing_heavy_that_it_does_not_need(modules: str, heavy: str) -> None:
    code = f"import sys, {modules}\nprint({{*{heavy.split()}}} & {{*sys.modules}})"
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("path", sorted((ROOT.parent / "tests" / "bench").rglob("*.py")))
def test_what_a_benchmark_imports_of_csrun_is_there(path: Path) -> None:
    """They are run by hand: a move would break them unnoticed."""
    missing = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("csrun"):
            module = importlib.import_module(str(node.module))
            for name in (alias.name for alias in node.names):
                if not hasattr(module, name) and not find_spec(f"{node.module}.{name}"):
                    missing.append(f"{node.module}.{name}")
    assert not missing


def test_the_checksum_of_a_compile_covers_what_the_compiler_imports() -> None:
    assert set(compile_directory.ROOMS) == MAY_IMPORT["compiler"] | {"compiler", "base"}


def test_the_checks_see_what_they_look_for() -> None:
    assert packages_of_csrun_imported(
        "from csrun.launch.job_plan import plan\nimport csrun.cli"
    ) == {
        "launch",
        "cli",
    }
    assert packages_of_csrun_imported("from csrun import launch") == {"launch"}
    assert modules_named("RUN = ('-m', 'csrun.cli')\nx = 'csrun. is'") == {"csrun.cli"}
    assert reads_environment("import os\nos.environ['A']")
    assert reads_environment("from os import environ")
    assert not reads_environment("import os\nos.getpid()")
