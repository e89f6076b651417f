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
    """Replacement of one string of a script, which must occur in it."""

    old: str
    new: str
    purpose: Purpose = Purpose.DATA

    @property
    def lines(self) -> int:
        """Lines that are new or other than before."""
        old, new = self.old.splitlines(), self.new.splitlines()
        return max(len(set(new) - set(old)), len(set(old) - set(new)))


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
    """

    name: str
    source: Package | Repository
    script: str
    arguments: tuple[str, ...] = ()
    patches: dict[str, tuple[Patch, ...]] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()

    @property
    def lines_beyond(self) -> int:
        """Lines changed for csrun beyond the four."""
        each = (patch for patches in self.patches.values() for patch in patches)
        return sum(patch.lines for patch in each if patch.purpose is Purpose.FOR_CSRUN)
