"""A real PyTorch script: where it comes from, and the lines of it that are replaced."""

from dataclasses import dataclass, field
from enum import Enum


class Purpose(Enum):
    """Reason for a patch. Only lines for csrun's sake count as changed."""

    FOUR_LINES = "the four lines"
    DATA = "synthetic data, smaller sizes, no dropout, 20 steps"
    RECORD = "losses and weights are recorded"
    FOR_CSRUN = "a line that csrun needs beyond the four"


@dataclass(frozen=True)
class Patch:
    """Replacement of the first occurrence of a string of a script, which must have it."""

    old: str
    new: str
    purpose: Purpose = Purpose.DATA

    @property
    def lines(self) -> int:
        """Lines that are new or other than before."""
        old, new = self.old.splitlines(), self.new.splitlines()
        return max(len(set(new) - set(old)), len(set(old) - set(new)))

    def apply(self, text: str) -> str:
        """Text with the replacement. Raises LookupError where the script has changed."""
        if self.old not in text:
            raise LookupError(f"no {self.old!r} to replace")
        return text.replace(self.old, self.new, 1)


@dataclass(frozen=True)
class Block:
    """A `with` statement around the lines from those that begin with `first` to those with `last`.

    The indentation is part of `first` and `last`; `end` is put after the block.
    """

    header: str
    first: str
    last: str
    end: str = "finish(model)"
    purpose: Purpose = Purpose.FOUR_LINES

    @property
    def lines(self) -> int:
        return 1

    def apply(self, text: str) -> str:
        """Text with the block indented. Raises LookupError where the script has changed."""
        lines = text.splitlines()
        begin = self._find(lines, self.first, 0)
        stop = self._find(lines, self.last, begin) + len(self.last.splitlines())
        margin = self.first[: len(self.first) - len(self.first.lstrip())]
        body = [f"    {line}" if line else line for line in lines[begin:stop]]
        block = [margin + self.header, *body, margin + self.end]
        return "\n".join([*lines[:begin], *block, *lines[stop:]]) + "\n"

    def _find(self, lines: list[str], start: str, after: int) -> int:
        count = len(start.splitlines())
        for number in range(after, len(lines)):
            if "\n".join(lines[number : number + count]).startswith(start):
                return number
        raise LookupError(f"no line {start!r}")


@dataclass(frozen=True)
class Package:
    """A package of PyPI, whose models one of `loops/` trains."""

    name: str
    requirements: tuple[str, ...] = ()

    @property
    def installed(self) -> tuple[str, ...]:
        return self.requirements or (self.name,)


@dataclass(frozen=True)
class Repository:
    """A public repository on GitHub, and the paths that the script needs of it."""

    name: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A script that nobody of the project wrote, or an author's model in its documented loop.

    script: a file of `loops/` or a path in the repository; patches: by path.
    requirements: packages of PyPI that the script imports besides its source's.
    draws: the step draws random numbers, other ones than PyTorch's; losses are not compared.
    """

    name: str
    source: Package | Repository
    script: str
    arguments: tuple[str, ...] = ()
    patches: dict[str, tuple[Patch | Block, ...]] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    draws: bool = False

    @property
    def lines_beyond(self) -> int:
        """Lines changed for csrun beyond the four."""
        each = (patch for patches in self.patches.values() for patch in patches)
        return sum(patch.lines for patch in each if patch.purpose is Purpose.FOR_CSRUN)
