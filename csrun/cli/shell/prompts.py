"""Questions of a command: a confirmation, or a choice."""

import sys
from collections.abc import Mapping
from typing import Protocol

from csrun.base.errors import CsrunError, UsageError

ANSWERS = {"yes": True, "y": True, "no": False, "n": False}


class Prompter(Protocol):
    """Source of answers: a terminal, or a pipe."""

    is_terminal: bool

    def confirm(self, question: str, remedy: str) -> bool:
        """Return the answer to a yes-or-no question; `remedy` is for input without a user."""

    def choose(self, question: str, labels: Mapping[str, str], default: str, remedy: str) -> str:
        """Return one of the keys of `labels`."""


class LinePrompter:
    """Questions and answers as lines of text; the end of the input is an error."""

    def __init__(self, is_terminal: bool = False) -> None:
        self.is_terminal = is_terminal

    def confirm(self, question: str, remedy: str) -> bool:
        """Ask until the answer is yes or no.

        Raises: CsrunError at the end of the input
        """
        while True:
            answer = self._read_answer(f"{question} (yes / no) ", remedy).lower()
            if answer in ANSWERS:
                return ANSWERS[answer]
            print("Please answer yes or no.")

    def choose(self, question: str, labels: Mapping[str, str], default: str, remedy: str) -> str:
        """Accept a key or a label, ignoring case, blanks and underscores.

        Raises: UsageError for another answer; CsrunError at the end of the input
        """
        by_name = {_folded(name): key for key, label in labels.items() for name in (key, label)}
        answer = self._read_answer(f"{question} [{', '.join(labels)}] ", remedy)
        if _folded(answer) not in by_name:
            raise UsageError(f"{answer!r} is not one of {', '.join(labels)}")
        return by_name[_folded(answer)]

    def _read_answer(self, question: str, remedy: str) -> str:
        print(question, end="", flush=True)
        line = sys.stdin.readline()
        if not (self.is_terminal and line):  # a typed answer ends its line itself
            print()
        if not line:
            raise CsrunError(f"no answer, standard input ended: {remedy}")
        return line.strip()


class KeyPrompter(LinePrompter):
    """Choices by arrow keys, on a terminal."""

    def __init__(self) -> None:
        super().__init__(is_terminal=True)

    def choose(self, question: str, labels: Mapping[str, str], default: str, remedy: str) -> str:
        """Move to a choice and press Enter; Ctrl-C cancels. A dumb terminal uses lines."""
        from prompt_toolkit.shortcuts import choice
        from prompt_toolkit.utils import is_dumb_terminal

        if is_dumb_terminal():
            return super().choose(question, labels, default, remedy)
        return choice(question, options=list(labels.items()), default=default)


def _folded(name: str) -> str:
    return name.replace("_", " ").casefold()
