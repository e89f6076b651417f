"""Completion at the prompt: commands, options and their values."""

from collections.abc import Iterator
from contextlib import suppress

import click
from click.shell_completion import ShellComplete
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory

from csrun.base.errors import CsrunError
from csrun.cli.shell.shell import Shell


class LineHistory(FileHistory):
    """History file; a write that fails, for example on a full disk, is ignored."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


class TreeCompleter(Completer):
    """Completion by click, which knows the tree of commands, their options and choices."""

    def __init__(self, root: click.Group, shell: Shell) -> None:
        self._complete = ShellComplete(root, {"obj": shell}, root.name or "", "")

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        """Yield completions of the word at the cursor; none if they cannot be determined."""
        text = document.text_before_cursor
        words = text.split()
        begun = words.pop() if words and not text[-1].isspace() else ""
        with suppress(CsrunError):
            for item in self._complete.get_completions(words, begun):
                yield Completion(f"{item.value} ", -len(begun), display_meta=item.help or "")
