"""Errors that are shown to the user as one line; any other exception is a bug, with a traceback."""

import re
import signal

EXIT_INTERRUPTED = 128 + signal.SIGINT


def shell_code(exit_code: int) -> int:
    """Convert an exit code to the shell's: Python's -signal becomes 128 + signal."""
    return 128 - exit_code if exit_code < 0 else exit_code


LONGEST_MESSAGE = 4000  # characters: enough for several paths of the maximum length of Linux
# characters of the end that remain, since the cause is often in the last line
_HEAD, _TAIL = 3000, 900
_LONGEST_WORD = 1000
_KEPT = 200
_ENDLESS = re.compile(rf"\S{{{_LONGEST_WORD},}}")
_CUT = re.compile(r"… \(([\d,]+) characters more\)(?: …)?")


def brief(message: str) -> str:
    """Shorten a message for display, for example one that quotes a damaged file.

    If it is longer than LONGEST_MESSAGE, the middle is replaced by a note with the number of
    characters removed. A message that was already shortened gets one note with the total.
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
    """Failure with a cause that the user can act on. The message has where, rule, got and remedy.

    A command prints it as one line, without a traceback, and exits with `exit_code`.
    """

    exit_code = 1

    def __str__(self) -> str:
        return brief(super().__str__())


class UsageError(CsrunError):
    """User's mistake that is found before anything runs."""

    exit_code = 2


class OutputError(CsrunError):
    """Failed write to an output: a full disk, or a pipe without a reader.

    A closed pipe is not reported; the exit code is that of a process ended by SIGPIPE.
    """

    def __init__(self, error: OSError, output: str = "standard output") -> None:
        super().__init__(f"{output}: {error.strerror}")
        self.is_unread = isinstance(error, BrokenPipeError)
        if self.is_unread:
            self.exit_code = 128 + signal.SIGPIPE


class PeerLost(CsrunError):  # noqa: N818  an event, not an error
    """Loss of another task of the job; a consequence, never the first cause of a failure.

    peer: role name of the lost task, if known. That task may be the first cause even if its exit
        code was 0.
    """

    def __init__(self, message: str, peer: str = "") -> None:
        super().__init__(message)
        self.peer = peer
        self.step: int | None = None  # step of the training that lost the peer, if known
