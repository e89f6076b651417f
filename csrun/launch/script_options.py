"""Options of a script's own command line, found in its source and in the modules next to it."""

import ast
from collections.abc import Container, Iterable, Iterator
from itertools import takewhile
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.base.typed_yaml import suggestion
from csrun.launch.script_imports import nodes_of, takes_its_words_unchanged

_DECLARING = ("add_argument", "option")  # of argparse and click
_OPEN = ("parse_known_args", "parse_known_intermixed_args")  # takes any others, too


def options_of(script: str) -> dict[str, object] | None:
    """Long options that a script declares, each with its default if that is a constant, else None.

    None where it may have others, as those that a function adds to its parser, or parses by itself.
    """
    nodes = list(nodes_of(Path(script)))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    named = [(_name_of(call.func), call) for call in calls]
    parsers = [call for name, call in named if name == "ArgumentParser"]
    has_parents = any(keyword.arg in ("parents", None) for p in parsers for keyword in p.keywords)
    if not parsers or has_parents or any(name in _OPEN for name, _ in named):
        return None
    names = _names_of(nodes, parsers)
    if any(isinstance(each, ast.Name) and each.id in names for c in calls for each in c.args):
        return None
    declaring = [call for name, call in named if name in _DECLARING]
    if not all(isinstance(word, ast.Constant) for call in declaring for word in call.args):
        return None
    return {word: _default_of(call) for call in declaring for word in _long(call.args)}


def check_option_names(script: str, words: Iterable[str]) -> None:
    """Check the long options of a script with an ArgumentParser of its own.

    Raises: UsageError for one that argparse would refuse, as far as can be seen
    """
    known = options_of(script)
    if known is None or not takes_its_words_unchanged(script) or _takes_any_words(script):
        return
    for word in takewhile("--".__ne__, words):
        name = word.partition("=")[0]
        is_option = word.startswith("--") and " " not in word
        # argparse takes an option's first letters for it
        if is_option and not any(each.startswith(name) for each in (*known, "--help")):
            raise UsageError(
                f"{Path(script).name}: no such option '{name}'{suggestion(name, [*known])}"
            )


def _takes_any_words(script: str) -> bool:
    """Return whether a parser has options that are not in its declarations, or others' words."""
    nodes = [*nodes_of(Path(script))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    names = {_name_of(node) for node in nodes if isinstance(node, ast.expr)}
    parsing = [call for call in calls if _name_of(call.func) == "parse_args"]
    return bool(names & {"BooleanOptionalAction", "REMAINDER"}) or any(
        call.args or call.keywords for call in parsing
    )


def _names_of(nodes: Iterable[ast.AST], values: Container[ast.expr]) -> set[str]:
    """Names that are assigned one of the values."""
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and node.value in values]
    return {each.id for node in assigned for each in node.targets if isinstance(each, ast.Name)}


def _default_of(call: ast.Call) -> object:
    values = [keyword.value for keyword in call.keywords if keyword.arg == "default"]
    return next((each.value for each in values if isinstance(each, ast.Constant)), None)


def _long(words: Iterable[ast.expr]) -> Iterator[str]:
    values = (each.value for each in words if isinstance(each, ast.Constant))
    return (word for word in values if isinstance(word, str) and word.startswith("--"))


def _name_of(function: ast.expr) -> str:
    """Last part of the name that is called."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
