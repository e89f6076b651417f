"""Message templates that a user of csrun can see, read from the syntax trees of its modules.

A message is a string given to an exception, a logger, print, click.echo, warnings.warn or `help=`,
or any other string that reads as prose, since tables and functions hold texts for these calls. An
f-string shows {names}. Docstrings count only for commands, whose `--help` shows them.

`scripts/messages [PACKAGE...]` prints them, one a line, as `file:line: text`.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).parents[2]
PACKAGE = CHECKOUT / "csrun"

_EXCEPTION = re.compile(r"(Error|Exception|Exit|Lost|Refused|Unsupported|Warning|BadParameter)$")
_PRINTER = re.compile(r"(print|echo|secho|warn|debug|info|warning|error|critical|exception|log)$")
_COMMAND = re.compile(r"(command|group)$")
_LETTERS = re.compile(r"[A-Za-z]{2}")
_PROSE = re.compile(r"[A-Za-z]+,? [a-z]+,? [a-z]+")
_CODE = re.compile(r"\\[sbdw]|^(from|import|def|for|if|elif|with) .*[:.(]|^\(\?|np\.")


class Message(NamedTuple):
    """A message template, and the line where it begins."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(CHECKOUT)}:{self.line}: {self.text}"


def modules(*packages: str) -> Iterator[Path]:
    """Modules of csrun, or of some of its packages, without the templates of `csrun init`."""
    for folder in [PACKAGE / name for name in packages] or [PACKAGE]:
        yield from (p for p in sorted(folder.rglob("*.py")) if "templates" not in p.parts)


def messages(path: Path) -> list[Message]:
    """Messages of a module, by line."""
    found = {Message(path, line, text) for line, text in messages_of(path.read_text())}
    return sorted(found)


def messages_of(text: str) -> Iterator[tuple[int, str]]:
    """Lines and texts of the messages in a module's text."""
    tree = ast.parse(text)
    shown = {string for node in ast.walk(tree) for string in _shown_by(node)}
    skipped = _documentation(tree) - shown
    for string in _strings(tree):
        said = _text(string)
        if _LETTERS.search(said) if string in shown else _is_prose(said) and string not in skipped:
            yield string.lineno, said


def _is_prose(text: str) -> bool:
    """True for words in a row, of which no line is Python that the compiler writes."""
    return bool(_PROSE.search(text)) and not _CODE.search(text)


def _shown_by(node: ast.AST) -> list[ast.expr]:
    """Strings that a node shows to a user."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return list(_strings(node.exc))
    if isinstance(node, ast.Call):
        name = _name(node.func)
        if _EXCEPTION.search(name) or _PRINTER.search(name):
            return list(_strings(node))
        return [string for each in node.keywords if each.arg == "help" for string in _strings(each)]
    if isinstance(node, ast.FunctionDef) and any(map(_is_command, node.decorator_list)):
        return [statement.value for statement in node.body[:1] if isinstance(statement, ast.Expr)]
    return []


def _is_command(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and bool(_COMMAND.search(_name(decorator.func)))


def _name(function: ast.expr) -> str:
    """The last name of what is called."""
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _documentation(tree: ast.Module) -> set[ast.expr]:
    """Strings that stand as statements: docstrings."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def _strings(node: ast.AST) -> Iterator[ast.expr]:
    """Strings below a node; an f-string is one, with those in its values."""
    if isinstance(node, ast.JoinedStr):
        yield node
        values = (v.value for v in node.values if isinstance(v, ast.FormattedValue))
        for value in values:
            yield from _strings(value)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node
    else:
        for child in ast.iter_child_nodes(node):
            yield from _strings(child)


def _text(string: ast.expr) -> str:
    """A string as it is shown, in one line."""
    if isinstance(string, ast.JoinedStr):
        text = "".join(map(_part, string.values))
    else:
        text = str(ast.literal_eval(string))
    return re.sub(r"\s*\n\s*", " ", text.strip())


def _part(value: ast.expr) -> str:
    if isinstance(value, ast.FormattedValue):
        return f"{{{ast.unparse(value.value)}}}"
    return str(ast.literal_eval(value))


if __name__ == "__main__":
    for module in modules(*sys.argv[1:]):
        for message in messages(module):
            print(message)
