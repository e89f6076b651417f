"""Options of a script's command line, found in its source and in the modules next to it."""

import ast
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from pathlib import Path

from csrun.base import choice
from csrun.base.errors import UsageError
from csrun.base.typed_yaml import suggestion
from csrun.launch.script_imports import nodes_of, parses_arguments_unchanged

_DECLARING = ("add_argument", "option")  # of argparse and click
_NUMBERS = {"int": "a whole number", "float": "a number"}
_OPEN = ("parse_known_args", "parse_known_intermixed_args")  # takes any others, too


def options_of(script: str) -> dict[str, object] | None:
    """Return the long options that a script declares, with constant defaults, else None.

    None if it may have other options, for instance those that a function adds to its parser.
    """
    nodes = list(nodes_of(Path(script)))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    named = [(_name_of(call.func), call) for call in calls]
    parsers = [call for name, call in named if name == "ArgumentParser"]
    keywords = {keyword.arg for parser in parsers for keyword in parser.keywords}
    if (
        not parsers
        or keywords & {"parents", "prefix_chars", None}
        or any(name in _OPEN for name, _ in named)
    ):
        return None
    names = _names_of(nodes, parsers)
    if any(isinstance(each, ast.Name) and each.id in names for c in calls for each in c.args):
        return None
    declaring = [call for name, call in named if name in _DECLARING]
    if not all(isinstance(name, ast.Constant) for call in declaring for name in call.args):
        return None
    return {name: _default_of(call) for call in declaring for name in _long(call.args)}


def check_options(script: str, arguments: Iterable[str]) -> None:
    """Check the long options of a script with an ArgumentParser of its own, and their values.

    Raises: UsageError for an option that argparse would certainly refuse
    """
    known = options_of(script)
    if known is None or not parses_arguments_unchanged(script) or _accepts_any_argument(script):
        return
    valued = _valued_options(script)
    own = [*takewhile("--".__ne__, arguments)]
    for argument, following in zip_longest(own, own[1:], fillvalue="-"):
        name, is_attached, text = argument.partition("=")
        is_option = argument.startswith("--") and " " not in argument
        # argparse accepts a unique prefix of an option
        if is_option and not any(each.startswith(name) for each in (*known, "--help")):
            raise UsageError(
                f"{Path(script).name}: no such option '{name}'{suggestion(name, [*known])}"
            )
        value = text if is_attached else following
        has_value = name in valued and (is_attached or not value.startswith("-"))
        if has_value and (wrong := valued[name].refusal(value)):
            raise UsageError(f"{Path(script).name}: invalid value for '{name}': {wrong}")


@dataclass(frozen=True)
class _ValuedOption:
    """Option with one value: a number, or one of its choices."""

    number: type[int] | type[float] | None = None
    choices: tuple[str, ...] = ()

    def refusal(self, text: str) -> str:
        """Rule that a value breaks; empty if argparse would take it."""
        if self.choices:
            return "" if text in self.choices else choice.refusal(text, self.choices)
        if self.number is not None:
            try:
                self.number(text)
            except ValueError:
                return f"must be {_NUMBERS[self.number.__name__]}, got {text!r}"
        return ""


def _valued_options(script: str) -> dict[str, _ValuedOption]:
    """Options of a script whose values can be checked by their declaration alone; none if a value
    may be in a file.
    """
    calls = [node for node in nodes_of(Path(script)) if isinstance(node, ast.Call)]
    if any(each.arg == "fromfile_prefix_chars" for call in calls for each in call.keywords):
        return {}
    declaring = [call for call in calls if _name_of(call.func) == "add_argument"]
    found: dict[str, list[_ValuedOption]] = {}
    for call in declaring:
        for name in _long(call.args):
            found.setdefault(name, []).append(_valued(call))
    return {name: each[0] for name, each in found.items() if len(each) == 1}  # else a subparser's


def _valued(call: ast.Call) -> _ValuedOption:
    """The rule for a value; none if argparse converts or stores it in another way."""
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    if options.keys() & {None, "nargs", "action"}:
        return _ValuedOption()
    kind, choices = options.get("type"), options.get("choices")
    if kind is None and isinstance(choices, ast.List | ast.Tuple):
        values = [each.value for each in choices.elts if isinstance(each, ast.Constant)]
        if len(values) == len(choices.elts):
            return _ValuedOption(choices=tuple(each for each in values if isinstance(each, str)))
    if choices is None and isinstance(kind, ast.Name) and kind.id in _NUMBERS:
        return _ValuedOption({"int": int, "float": float}[kind.id])
    return _ValuedOption()


def _accepts_any_argument(script: str) -> bool:
    """Return whether a parser accepts undeclared options or arguments."""
    nodes = [*nodes_of(Path(script))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    names = {_name_of(node) for node in nodes if isinstance(node, ast.expr)}
    parsing = [call for call in calls if _name_of(call.func) == "parse_args"]
    return bool(names & {"BooleanOptionalAction", "REMAINDER"}) or any(
        call.args or call.keywords for call in parsing
    )


def _names_of(nodes: Iterable[ast.AST], values: Container[ast.expr]) -> set[str]:
    """Return the names that one of the values is assigned to."""
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and node.value in values]
    return {each.id for node in assigned for each in node.targets if isinstance(each, ast.Name)}


def _default_of(call: ast.Call) -> object:
    values = [keyword.value for keyword in call.keywords if keyword.arg == "default"]
    return next((each.value for each in values if isinstance(each, ast.Constant)), None)


def _long(names: Iterable[ast.expr]) -> Iterator[str]:
    values = (each.value for each in names if isinstance(each, ast.Constant))
    return (name for name in values if isinstance(name, str) and name.startswith("--"))


def _name_of(function: ast.expr) -> str:
    """Return the last component of the called name."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
