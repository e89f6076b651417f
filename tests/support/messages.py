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
    yield from _below(ast.parse(text), shown=False)


def _below(node: ast.AST, shown: bool) -> Iterator[tuple[int, str]]:
    """Messages in a node; `shown` tells whether strings here are shown to a user."""
    shown = shown or _shows(node)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.Constant | ast.JoinedStr):
        said = _text(node)
        if _LETTERS.search(said) if shown else _is_prose(said):
            yield node.lineno, said
    if isinstance(node, ast.JoinedStr):
        children = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
    else:
        children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.FunctionDef) and any(map(_is_command, node.decorator_list)):
        yield node.body[0].lineno, _in_one_line(ast.get_docstring(node) or node.name)
    for child in children:
        yield from _below(child, shown)


def _shows(node: ast.AST) -> bool:
    """True for a call or argument whose strings are shown to a user."""
    match node:
        case ast.Raise(exc=ast.Call()) | ast.keyword(arg="help"):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return bool(_EXCEPTION.search(name) or _PRINTER.search(name))
    return False


def _is_command(decorator: ast.expr) -> bool:
    match decorator:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return bool(_COMMAND.search(name))
    return False


def _is_prose(text: str) -> bool:
    """True for several words in a row, unless they are code that the compiler writes."""
    return bool(_PROSE.search(text)) and not _CODE.search(text)


def _text(string: ast.Constant | ast.JoinedStr) -> str:
    """A string as it is shown, in one line; '' for another constant."""
    if isinstance(string, ast.JoinedStr):
        return _in_one_line("".join(map(_part, string.values)))
    return _in_one_line(string.value) if isinstance(string.value, str) else ""


def _in_one_line(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text.strip())


def _part(value: ast.expr) -> str:
    if isinstance(value, ast.FormattedValue):
        return f"{{{ast.unparse(value.value)}}}"
    return str(ast.literal_eval(value))


if __name__ == "__main__":
    for module in modules(*sys.argv[1:]):
        for message in messages(module):
            print(message)
