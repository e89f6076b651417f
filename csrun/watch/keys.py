"""State of the live screen, and the effect of keys on it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from csrun.watch.screen import KEYS, ScreenView
from csrun.watch.site_snapshot import JobLine


class Key(Enum):
    """Keys that the screen knows."""

    UP = "up"
    DOWN = "down"
    LOG = "l"
    CANCEL = "c"
    YES = "y"
    QUIT = "q"
    OTHER = ""


_SEQUENCES = {b"\x1b[A": Key.UP, b"\x1bOA": Key.UP, b"\x1b[B": Key.DOWN, b"\x1bOB": Key.DOWN}
_LETTERS = {b"k": Key.UP, b"j": Key.DOWN} | {k.value.encode(): k for k in Key if len(k.value) == 1}


def keys_in(data: bytes) -> list[Key]:
    """Decode keys from a terminal's input."""
    found = []
    while data:
        if data[:3] in _SEQUENCES:
            found.append(_SEQUENCES[data[:3]])
            data = data[3:]
        else:
            found.append(_LETTERS.get(data[:1], Key.OTHER))
            data = data[1:]
    return found


@dataclass(frozen=True)
class ScreenState:
    """selected: the displayed job; None if the collector chooses.

    asks: whether the screen asks before it cancels that job.
    cancels: the job to cancel.
    notice: line in place of the keys.
    """

    selected: int | None = None
    shows_log: bool = False
    asks: bool = False
    cancels: int | None = None
    is_over: bool = False
    notice: str = ""

    @property
    def view(self) -> ScreenView:
        """View of the screen."""
        if self.asks:
            footer = f"cancel job {self.selected}? y: yes, any other key: no"
            return ScreenView(self.selected, self.shows_log, footer, asks=True)
        return ScreenView(self.selected, self.shows_log, self.notice or KEYS)

    def pressed(self, key: Key, jobs: Sequence[JobLine]) -> "ScreenState":
        """Return the state after a key; jobs: in the order of the screen."""
        if self.asks:
            job_id = self.selected if key is Key.YES else None
            return replace(self, asks=False, cancels=job_id, notice="")
        match key:
            case Key.QUIT:
                return replace(self, is_over=True)
            case Key.LOG:
                return replace(self, shows_log=not self.shows_log)
            case Key.UP | Key.DOWN:
                return replace(self, selected=self._next(key, jobs), notice="")
            case Key.CANCEL:
                return self._asking(jobs)
        return self

    def _next(self, key: Key, jobs: Sequence[JobLine]) -> int | None:
        ids = [job.job_id for job in jobs]
        if self.selected not in ids:
            return ids[0] if ids else None
        at = ids.index(self.selected) + (1 if key is Key.DOWN else -1)
        return ids[max(0, min(at, len(ids) - 1))]

    def _asking(self, jobs: Sequence[JobLine]) -> "ScreenState":
        job = next((job for job in jobs if job.job_id == self.selected), None)
        if job is None or not job.is_active:
            return replace(self, notice="only a job that waits or runs can be cancelled")
        return replace(self, asks=True)
