"""What a script will import that takes long, found in its text before any task of it starts."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.launch.command import mode_of

#: Packages that cost seconds and hundreds of megabytes: those of a node's tasks share one import.
HEAVY = ("torch", "cerebras_torch")
_BESIDE = {"cerebras_torch": ("torch._dynamo",)}  # what the first optimizer of torch.optim imports


def heavy_imports(command: tuple[str, ...]) -> tuple[str, ...]:
    """Which of `HEAVY` a script of csrun's interpreters imports, itself or by a module beside it,
    and what these will import when they are used.

    What cannot be read or parsed imports nothing here: the tasks will say why.
    """
    if mode_of(command) is None or len(command) < 2 or command[1].startswith("-"):
        return ()
    found = set(_packages(Path(command[1]), set()))
    names = [name for name in HEAVY if name in found]
    return (*names, *(beside for name in names for beside in _BESIDE.get(name, ())))


def require_torch(command: tuple[str, ...]) -> None:
    """See that PyTorch is installed where a script of csrun's interpreters cannot begin without it.

    It can where it imports it in a function, or in a `try`.

    Raises: UsageError with the line of the import, for no task would get beyond it
    """
    if not heavy_imports(command):
        return
    script = Path(command[1])
    found = next((node for node in _tree(script).body if _first_of(node) in HEAVY), None)
    if found is None or (script.parent / "torch.py").exists() or find_spec("torch") is not None:
        return
    raise UsageError(
        f"{script}:{found.lineno}: imports {_first_of(found)}, and PyTorch is not installed: "
        "pip install 'torch==2.13.*'"
    )


def _first_of(node: ast.AST) -> str | None:
    """The package of an import that is one of `HEAVY`."""
    return next((name for name in _imported(node) if name in HEAVY), None)


def _packages(script: Path, seen: set[Path]) -> Iterator[str]:
    """The top-level packages that a file imports anywhere, with those of its neighbours."""
    seen.add(script)
    for node in ast.walk(_tree(script)):
        for name in _imported(node):
            yield name
            neighbour = script.parent / f"{name}.py"
            if neighbour not in seen and neighbour.is_file():
                yield from _packages(neighbour, seen)


def _tree(script: Path) -> ast.Module:
    """A file's statements; none where it cannot be read or parsed."""
    try:
        return ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []
