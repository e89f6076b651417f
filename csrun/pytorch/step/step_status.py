"""Status of one step of a loop: its phase in the loop, and the state of its values.

phase, which the loop changes:

- RECORDING  its calls run on traced tensors (steps 1 to 3, and if the graph may differ)
- TOKENS     its batch was passed as tokens, and its calls are compared with those of step 1
- BACKWARD   `backward()` was called: gradients exist, without numbers
- OVER       `optimizer.step()` was called, or the next batch was taken

progress, which the run changes:

- PENDING    the loop has not queued it
- QUEUED     it is in the run's queue, or running on the wafer
- DONE       it has run: its loss and its outputs are known
- REPLAYED   an earlier run has computed it: its loss is that of the value log

Both are needed because a value may be read in the middle of a step: it is then DONE, while the loop
is before `optimizer.step()`.
"""

from enum import Enum, auto


class StepPhase(Enum):
    """Phase of a step in the loop."""

    __hash__ = object.__hash__  # Enum's own is written in Python

    RECORDING = auto()
    TOKENS = auto()
    BACKWARD = auto()
    OVER = auto()


class StepProgress(Enum):
    """State of a step's values."""

    __hash__ = object.__hash__

    PENDING = auto()
    QUEUED = auto()
    DONE = auto()
    REPLAYED = auto()


TRANSITIONS: frozenset[tuple[StepPhase | StepProgress, StepPhase | StepProgress]] = frozenset(
    {
        (StepPhase.RECORDING, StepPhase.BACKWARD),
        (StepPhase.RECORDING, StepPhase.OVER),  # of an evaluation
        (StepPhase.TOKENS, StepPhase.BACKWARD),
        (StepPhase.TOKENS, StepPhase.OVER),
        (StepPhase.BACKWARD, StepPhase.OVER),
        (StepProgress.PENDING, StepProgress.QUEUED),
        (StepProgress.QUEUED, StepProgress.REPLAYED),
        (StepProgress.QUEUED, StepProgress.DONE),
    }
)


class InvalidTransitionError(Exception):
    """Invalid change of status, which is a bug of the loop."""


class StepStatus:
    """Phase and progress of one step, changed only by transitions of the table.

    is_over: the loop has left it.
    has_gradients: the loop is between `backward()` and `optimizer.step()`.
    is_queued: the loop has queued it, with the optimizer's numbers at that time.
    """

    __slots__ = ("has_gradients", "is_over", "is_queued", "phase", "progress")

    def __init__(self, phase: StepPhase) -> None:
        self.phase, self.progress = phase, StepProgress.PENDING
        self.is_over = self.has_gradients = self.is_queued = False

    @property
    def has_values(self) -> bool:
        """True if it has run, in this or an earlier run: it gets no further outputs."""
        return self.progress in (StepProgress.DONE, StepProgress.REPLAYED)

    def enter(self, phase: StepPhase) -> None:
        """Go to a phase. Raises: InvalidTransitionError"""
        if (self.phase, phase) not in TRANSITIONS:
            raise self._invalid(self.phase, phase)
        self.phase = phase
        self.is_over, self.has_gradients = phase is StepPhase.OVER, phase is StepPhase.BACKWARD

    def advance(self, progress: StepProgress) -> None:
        """Advance to a progress. Raises: InvalidTransitionError"""
        if (self.progress, progress) not in TRANSITIONS:
            raise self._invalid(self.progress, progress)
        self.progress, self.is_queued = progress, True

    def _invalid(
        self, before: StepPhase | StepProgress, after: StepPhase | StepProgress
    ) -> InvalidTransitionError:
        now = f"{self.phase.name}, {self.progress.name}"
        return InvalidTransitionError(f"{before} -> {after} of a step that is {now}")
