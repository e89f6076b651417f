"""docs/design.md describes the tree: packages, types, files, walks."""

import ast
import re
from pathlib import Path

import pytest
from support.pages import CHECKOUT, section
from test_imports import CORE, EVERYTHING, MAY_IMPORT

PAGE = CHECKOUT / "docs" / "design.md"
#: How many files a reader of each walk may have to open.
LIMITS = {
    "A batch, from the Dataset to the program": 20,
    "A weight, from its layer to the checkpoint": 55,
    "A request, from the command to the running task": 31,
    "A failure, from the task to the screen": 16,
    "The first step of a PyTorch loop, from `for batch in loader` to the compiled program": 54,
    "A later step of a PyTorch loop, from the batch to the wafer": 35,
}
#: Modules that import by a name that is made as they run.
BY_NAME = {"csrun/cli/entry.py"}


def rows(title: str) -> list[list[str]]:
    """Cells of each row of a section's table, without the head."""
    lines = [line for line in section(PAGE, title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def packages_in(text: str) -> frozenset[str]:
    """Packages named by a table's cell."""
    if text == "all packages":
        return EVERYTHING
    named = frozenset(re.findall(r"`(\w+)`", text))
    return named | CORE if "the core packages" in text else named


def walk(title: str) -> list[str]:
    """Files of a walk, one for each item of its list."""
    items = re.findall(r"^\d+\. (.*)", section(PAGE, title), re.MULTILINE)
    files = [re.match(r"`([^`]+)`", item) for item in items]
    assert all(files), f"{title}: an item that does not begin with a file"
    return [found[1] for found in files if found]


def modules_imported(path: str) -> set[str]:
    """Files of csrun that a file imports, directly or by their package."""
    found = set()
    for node in ast.walk(ast.parse((CHECKOUT / path).read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            module = Path(*name.split("."))
            found |= {f"{module}.py", f"{module}/__init__.py"}
    packages = [CHECKOUT / name for name in found if name.endswith("/__init__.py")]
    if not path.endswith("/__init__.py"):  # what a package hands on is imported from it, too
        for package in filter(Path.exists, packages):
            found |= modules_imported(str(package.relative_to(CHECKOUT)))
    return found


def test_the_table_of_packages_is_that_of_the_import_test() -> None:
    table = {
        package.strip("`"): packages_in(imports) for package, _, _, imports in rows("Packages")
    }
    assert table == MAY_IMPORT


def test_the_core_packages_are_the_layer_of_that_name() -> None:
    layers = {package.strip("`"): layer for package, layer, _, _ in rows("Packages")}
    assert {package for package, layer in layers.items() if layer == "core"} == CORE


def test_the_main_types_are_classes_of_their_files() -> None:
    for types, files, _ in rows("Main types"):
        text = "".join((CHECKOUT / path).read_text() for path in re.findall(r"`([^`]+)`", files))
        for name in types.split(", "):
            assert not name[0].isupper() or f"class {name}" in text, name


@pytest.mark.parametrize("title", LIMITS)
def test_a_walk_is_of_files_that_are_there_and_as_short_as_it_must_be(title: str) -> None:
    files = walk(title)
    assert not [path for path in files if not (CHECKOUT / path).is_file()]
    assert len(files) == len(set(files))
    assert len(files) <= LIMITS[title]


@pytest.mark.parametrize("title", LIMITS)
def test_a_walk_hangs_together(title: str) -> None:
    """Each file imports another one of the walk, or is imported by one."""
    files = walk(title)
    imports = {path: modules_imported(path) for path in files if path.startswith("csrun/")}
    alone = [
        path
        for path in set(imports) - BY_NAME
        if not imports[path] & set(files)
        and not any(path in imported for other, imported in imports.items() if other != path)
    ]
    assert not alone


def test_the_page_has_the_walks_and_no_other() -> None:
    assert re.findall(r"^### (.*)", PAGE.read_text(), re.MULTILINE) == list(LIMITS)
