"""YAML files as plain values; errors name the line and a remedy.

Scalars follow YAML 1.2's core schema. Numbers of base 8 or 60, which only YAML 1.1 has, are
refused, because their meaning would be ambiguous. Text that would take memory or time out of
proportion to its length is refused, too.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError

from csrun.base.errors import UsageError
from csrun.base.files import read_input

MAX_BYTES = 1 << 20  # the largest params file found in public repositories has 12 KB
MAX_DEPTH = 64  # nesting levels; the parser uses several Python stack frames per level
MAX_VALUES = 100_000  # values after expansion of aliases and merges
_MAX_DIGITS = 400  # more digits than any float has before its point
_SHOWN = 40  # characters of a value in a message

_TAG = "tag:yaml.org,2002:"
# Pattern of each type, and the first characters of its values; int is tried before float.
# Source: YAML 1.2.2, section 10.3.2, the tag resolution of the core schema
_CORE = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    "merge": (r"<<", ["<"]),
}
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+(?:\.[0-9_]*)?")
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_SURROGATE = re.compile("[\ud800-\udfff]")

_HINTS = {
    r"found character '\t'": "indent with spaces, not with tabs",
    "mapping values are not allowed": "is the line indented too far, or a space missing after the "
    "colon of the line before?",
    "expected <block end>": "is the line indented as its neighbours are?",
    "could not find expected ':'": "is a colon missing, or the space after it?",
}


class _PlainLoader(yaml.SafeLoader):
    """YAML's safe loader with the core schema, size limits, and an error for duplicate keys."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  PyYAML's name and type
    yaml_constructors = {
        _TAG + name: yaml.SafeLoader.yaml_constructors[_TAG + name]
        for name in ("null", "str", "seq", "map")
    } | {None: yaml.SafeLoader.construct_undefined}

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node and count the nesting depth, before Python's recursion limit is
        reached.
        """
        if self._depth > MAX_DEPTH:
            problem = f"nested more than {MAX_DEPTH} levels deep: is a bracket not closed?"
            raise ComposerError(None, None, problem, self._next().start_mark)
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping. Source: YAML 1.2.2, section 3.2.1.3: keys of a mapping are unique."""
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            first = seen.setdefault((key.tag, key.value), key)
            if first is not key:
                line = first.start_mark.line + 1
                problem = f"duplicate key {key.value}, first in line {line}: remove one of the two"
                raise ComposerError(None, None, problem, key.start_mark)
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        """Compose a scalar; refuse a number that YAML 1.1 reads in another base."""
        plain = self._next().style is None and self._next().implicit[0]
        node = super().compose_scalar_node(anchor)
        if plain and _LEADING_ZERO.fullmatch(node.value):
            problem = f"{node.value}: write the number without leading zeros, or quote it as text"
            raise ComposerError(None, None, problem, node.start_mark)
        if plain and _BASE_60.fullmatch(node.value):
            problem = f"{node.value} is not a number: quote it as text, or write it out"
            raise ComposerError(None, None, problem, node.start_mark)
        if _SURROGATE.search(node.value):
            problem = "unpaired surrogate, which is not a character"
            raise ComposerError(None, None, problem, node.start_mark)
        return node

    def _next(self) -> Any:
        return self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's stubs lack it

    def get_single_node(self) -> yaml.Node | None:
        """Compose the document; refuse one that is too large after expansion of its aliases."""
        node: yaml.Node | None = super().get_single_node()
        if node is not None and self._values_in(node, {}) > MAX_VALUES:
            problem = f"more than {MAX_VALUES:,} values once its aliases are expanded"
            raise ComposerError(None, None, problem, node.start_mark)
        return node

    def _values_in(self, node: yaml.Node, known: dict[int, int | None]) -> int:
        """Count the values below a node, with those of an alias at each of its places."""
        if id(node) in known:
            count = known[id(node)]
            if count is None:
                problem = "recursive alias"
                raise ComposerError(None, None, problem, node.start_mark)
            return count
        known[id(node)] = None
        below = [] if isinstance(node, yaml.ScalarNode) else node.value
        parts = (part for item in below for part in (item if isinstance(item, tuple) else (item,)))
        count = 1 + sum(self._values_in(part, known) for part in parts)
        known[id(node)] = count
        return count


def _bool(text: str) -> bool:
    return text[0] in "tT"


def _int(text: str) -> int:
    return int(text, 0 if text.startswith(("0o", "0x")) else 10)


def _float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


_MAKERS: dict[str, Callable[[str], Any]] = {"bool": _bool, "int": _int, "float": _float}


def _construct(loader: _PlainLoader, node: yaml.ScalarNode) -> Any:
    """Construct a scalar of an explicit or resolved tag; refuse text that does not match the
    tag.
    """
    name, text = node.tag.removeprefix(_TAG), str(loader.construct_scalar(node))
    if len(text) > _MAX_DIGITS or not re.fullmatch(_CORE[name][0], text):
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise ConstructorError(None, None, f"{shown} is not of type {name}", node.start_mark)
    value = _MAKERS[name](text)
    if name == "int" and not -(2**63) <= value < 2**63:
        raise ConstructorError(None, None, f"{text} has more than 64 bits", node.start_mark)
    return value


def _install() -> None:
    for name, (pattern, first) in _CORE.items():
        _PlainLoader.add_implicit_resolver(_TAG + name, re.compile(f"(?:{pattern})$"), first)
    for name in _MAKERS:
        _PlainLoader.add_constructor(_TAG + name, _construct)


_install()


def read(path: Path) -> Any:
    """Return the plain values of a YAML file; a pipe is read once.

    Raises: UsageError if the file cannot be read, is not YAML, is too large, or has a duplicate key
    """
    try:
        content = read_input(path, MAX_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    return parse(content, str(path))


def parse(content: bytes, where: str) -> Any:
    """Parse YAML text; `where` names it in messages.

    Raises: UsageError as `read`
    """
    try:
        return yaml.load(content, _PlainLoader)
    except ReaderError as error:
        line = content.count(b"\n", 0, error.position) + 1
        raise UsageError(
            f"{where}: line {line}: not text in UTF-8: byte 0x{error.character:02x}; save the file "
            "as UTF-8"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{where}: {_explain(error)}") from error


def _explain(error: yaml.YAMLError | ValueError) -> str:
    """Return the reason and position of a YAML error."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"not YAML: {' '.join(str(error).split())}"
    mark, problem = error.problem_mark, str(error.problem)
    hints = (hint for start, hint in _HINTS.items() if problem.startswith(start))
    remedy = "".join(f"; {hint}" for hint in hints)
    return f"line {mark.line + 1}, column {mark.column + 1}: not YAML: {problem}{remedy}"
