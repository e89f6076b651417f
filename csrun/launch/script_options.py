"""Options of a script's own command line, found in its source and in the modules next to it."""

import ast
from collections.abc import Iterable
from pathlib import Path

from csrun.launch.script_imports import nodes_of

_DECLARING = ("add_argument", "option")  # of argparse and click
_OPEN = ("parse_known_args", "parse_known_intermixed_args")  # takes any others, too


def options_of(script: str) -> tuple[str, ...] | None:
    """Long options that a script declares; None where it may have others, or parses by itself."""
    calls = [node for node in nodes_of(Path(script)) if isinstance(node, ast.Call)]
    named = [(_name_of(call.func), call) for call in calls]
    parsers = [call for name, call in named if name == "ArgumentParser"]
    has_parents = any(keyword.arg in ("parents", None) for p in parsers for keyword in p.keywords)
    if not parsers or has_parents or any(name in _OPEN for name, _ in named):
        return None
    words = [each for name, call in named if name in _DECLARING for each in call.args]
    if not all(isinstance(each, ast.Constant) for each in words):
        return None
    return tuple(_long(each.value for each in words if isinstance(each, ast.Constant)))


def _long(words: Iterable[object]) -> Iterable[str]:
    return (word for word in words if isinstance(word, str) and word.startswith("--"))


def _name_of(function: ast.expr) -> str:
    """Last part of the name that is called."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
