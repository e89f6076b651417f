"""Status of one step of a loop: what the loop does with it, and what has become of its values.

phase, which the loop changes:

- RECORDING  its calls run on traced tensors (steps 1 to 3, and where the graph may be another)
- TOKENS     its batch was handed out as tokens, and its calls are compared with those of step 1
- BACKWARD   `backward()` was called: gradients are there, without numbers
- OVER       `optimizer.step()` was called, or the next batch was taken

progress, which the run changes:

- PENDING    the loop has not queued it
- QUEUED     it is in the run's queue, or the wafer is at work on it
- DONE       it has run: its loss and its outputs are known
- REPLAYED   an earlier run has taken it: its loss is that of the value log

These are two because a value may be read in the middle of a step: it is DONE then, while the loop
is before `optimizer.step()`.
"""

from enum import Enum, auto


class Phase(Enum):
    """What the loop does with a step."""

    RECORDING = auto()
    TOKENS = auto()
    BACKWARD = auto()
    OVER = auto()


class Progress(Enum):
    """What has become of a step's values."""

    PENDING = auto()
    QUEUED = auto()
    DONE = auto()
    REPLAYED = auto()


TRANSITIONS: frozenset[tuple[Phase | Progress, Phase | Progress]] = frozenset(
    {
        (Phase.RECORDING, Phase.BACKWARD),
        (Phase.RECORDING, Phase.OVER),  # of an evaluation
        (Phase.TOKENS, Phase.BACKWARD),
        (Phase.TOKENS, Phase.OVER),
        (Phase.BACKWARD, Phase.OVER),
        (Progress.PENDING, Progress.QUEUED),
        (Progress.QUEUED, Progress.REPLAYED),
        (Progress.QUEUED, Progress.DONE),
    }
)


class InvalidTransitionError(Exception):
    """A bug of the loop: a change of status that the table does not have."""


class StepStatus:
    """Phase and progress of one step, changed by the transitions of the table alone."""

    __slots__ = ("_phase", "_progress")

    def __init__(self, phase: Phase) -> None:
        self._phase, self._progress = phase, Progress.PENDING

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def progress(self) -> Progress:
        return self._progress

    @property
    def is_over(self) -> bool:
        """Whether the loop has left it."""
        return self._phase is Phase.OVER

    @property
    def is_queued(self) -> bool:
        """Whether the loop has queued it, with the optimizer's numbers of that time."""
        return self._progress is not Progress.PENDING

    @property
    def has_values(self) -> bool:
        """Whether it has run, here or in an earlier run: no further output comes."""
        return self._progress in (Progress.DONE, Progress.REPLAYED)

    def enter(self, phase: Phase) -> None:
        """Go to a phase. Raises: InvalidTransitionError"""
        self._require(self._phase, phase)
        self._phase = phase

    def advance(self, progress: Progress) -> None:
        """Go on to a progress. Raises: InvalidTransitionError"""
        self._require(self._progress, progress)
        self._progress = progress

    def _require(self, before: Phase | Progress, after: Phase | Progress) -> None:
        if (before, after) not in TRANSITIONS:
            now = f"{self._phase.name}, {self._progress.name}"
            raise InvalidTransitionError(f"{before} -> {after} of a step that is {now}")
