"""The errors that a user sees as one clear line; all else is a bug and keeps its traceback."""

import re
import signal

EXIT_INTERRUPTED = 128 + signal.SIGINT


def shell_code(exit_code: int) -> int:
    """An exit code as a shell has it: 128 + signal for a killed process, Python's -signal."""
    return 128 - exit_code if exit_code < 0 else exit_code


LONGEST_MESSAGE = 4000  # characters: a few paths, each as long as Linux lets it be, are not hurt
_HEAD, _TAIL = 3000, 900  # of one that is longer; a cause is often its last line
_LONGEST_WORD = 1000
_KEPT = 200
_ENDLESS = re.compile(rf"\S{{{_LONGEST_WORD},}}")
_CUT = re.compile(r"… \(([\d,]+) characters more\)(?: …)?")


def brief(message: str) -> str:
    """A message that a person can read: of a word without end, as a damaged file has it, the start.

    Of all that is longer than LONGEST_MESSAGE the middle is cut out. A message that was made of one
    that is cut already says how much is missing in all.
    """
    text = _ENDLESS.sub(lambda word: _start_of(word[0]), message)
    if len(text) <= LONGEST_MESSAGE:
        return text
    return f"{text[:_HEAD]}{_cut(text[_HEAD:-_TAIL])} …{text[-_TAIL:]}"


def _start_of(word: str) -> str:
    return f"{word[:_KEPT]}{_cut(word[_KEPT:])}"


def _cut(text: str) -> str:
    """Replacement of a cut text."""
    earlier = sum(int(found[1].replace(",", "")) for found in _CUT.finditer(text))
    return f"… ({len(_CUT.sub('', text)) + earlier:,} characters more)"


class CsrunError(Exception):
    """A failure with a cause the user can act on: where, rule, got, remedy.

    A command prints it as one line, without a traceback, and exits with `exit_code`.
    """

    exit_code = 1

    def __str__(self) -> str:
        return brief(super().__str__())


class UsageError(CsrunError):
    """A user's mistake found before anything ran."""

    exit_code = 2


class OutputError(CsrunError):
    """An output takes no more: a full disk, or a pipe that nobody reads any more.

    An unread one is no news to the user: the exit code is that of a program that SIGPIPE ends.
    """

    def __init__(self, error: OSError, output: str = "standard output") -> None:
        super().__init__(f"{output}: {error.strerror}")
        self.is_unread = isinstance(error, BrokenPipeError)
        if self.is_unread:
            self.exit_code = 128 + signal.SIGPIPE


class PeerLost(CsrunError):  # noqa: N818  an event, not an error
    """A task lost another task of its job; never the first cause of a failure.

    `peer` is the lost one's name among the roles of the run, where it is known: it may be the first
    cause though it ended with exit code 0.
    """

    def __init__(self, message: str, peer: str = "") -> None:
        super().__init__(message)
        self.peer = peer
        self.step: int | None = None  # of the training that lost it, where that is known
