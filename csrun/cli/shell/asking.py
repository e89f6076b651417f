"""Questions of a command: a confirmation, or one of several choices."""

import sys
from collections.abc import Mapping
from typing import Protocol

from csrun.base.errors import CsrunError, UsageError

ANSWERS = {"yes": True, "y": True, "no": False, "n": False}


class Asking(Protocol):
    """Source of answers: a terminal, or a pipe."""

    is_terminal: bool

    def confirm(self, question: str, remedy: str) -> bool:
        """A yes or no; `remedy` is for where nobody can answer."""

    def choose(self, question: str, labels: Mapping[str, str], default: str, remedy: str) -> str:
        """One of the keys of `labels`."""


class LineAsking:
    """Questions and answers are lines of text; the end of the input is no answer."""

    def __init__(self, is_terminal: bool = False) -> None:
        self.is_terminal = is_terminal

    def confirm(self, question: str, remedy: str) -> bool:
        """Ask until the answer is yes or no.

        Raises: CsrunError when the input ends
        """
        while True:
            answer = self._answer(f"{question} (yes / no) ", remedy).lower()
            if answer in ANSWERS:
                return ANSWERS[answer]
            print("Please answer yes or no.")

    def choose(self, question: str, labels: Mapping[str, str], default: str, remedy: str) -> str:
        """Take a key or a label, in any spelling of case, blank and underscore.

        Raises: UsageError for another answer; CsrunError when the input ends
        """
        by_name = {_folded(name): key for key, label in labels.items() for name in (key, label)}
        answer = self._answer(f"{question} [{', '.join(labels)}] ", remedy)
        if _folded(answer) not in by_name:
            raise UsageError(f"{answer!r} is not one of {', '.join(labels)}")
        return by_name[_folded(answer)]

    def _answer(self, question: str, remedy: str) -> str:
        print(question, end="", flush=True)
        line = sys.stdin.readline()
        if not (self.is_terminal and line):  # whoever types ends the line
            print()
        if not line:
            raise CsrunError(f"no answer, standard input ended: {remedy}")
        return line.strip()


class KeyAsking(LineAsking):
    """At a terminal: choices by the arrow keys."""

    def __init__(self) -> None:
        super().__init__(is_terminal=True)

    def choose(self, question: str, labels: Mapping[str, str], default: str, remedy: str) -> str:
        """Move to a choice and press Enter; Ctrl-C gives up. A dumb terminal gets a line."""
        from prompt_toolkit.shortcuts import choice
        from prompt_toolkit.utils import is_dumb_terminal

        if is_dumb_terminal():
            return super().choose(question, labels, default, remedy)
        return choice(question, options=list(labels.items()), default=default)


def _folded(name: str) -> str:
    return name.replace("_", " ").casefold()
