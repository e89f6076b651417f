"""Orders: steps that the chief requests from a wafer, and their results."""

import msgspec


class AccumulatedBatches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Batches of steps with gradient accumulation, up to the last batch of each step.

    before: number of batches of the first step that earlier orders have computed.
    ends: for each batch of the order whether it is the last one of its step. Without batches, the
        step ends with those before.
    """

    before: int
    ends: tuple[bool, ...] = ()

    @property
    def steps(self) -> int:
        """Number of steps that end."""
        return sum(self.ends) if self.ends else 1

    def first(self, batches: int) -> "AccumulatedBatches":
        """Return the part for the first batches."""
        return AccumulatedBatches(self.before, self.ends[:batches])

    def batches_of(self, steps: int) -> int:
        """Return the number of batches of the first steps."""
        ended = 0
        for number, ends in enumerate(self.ends, 1):
            ended += ends
            if ended == steps:
                return number
        return len(self.ends)


class StepOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Up to `count` steps, starting with global step `first`.

    `first` determines schedules and random draws; the next batch is the one after the last batch
    taken.

    keeps_all: keep the outputs of each step of a training, not only the last one's.
    accumulation: the steps are batches with gradient accumulation, of a plan that `accumulates`.
    """

    first: int
    count: int
    keeps_all: bool = False
    accumulation: AccumulatedBatches | None = None


class RunSteps(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer: run these steps of a program, by its number."""

    steps: StepOrder
    program: int = 0


class StreamerUse(msgspec.Struct, frozen=True, array_like=True):
    """The wafer's use of one streamer in an order's steps.

    streamer: index of the streamer.
    wait_s: time that the wafer waited for its batches.
    produce_s: time to make them.
    slowest: index of its slowest stage, -1 if unknown.
    slowest_s: that stage's time per batch.
    """

    streamer: int
    batches: int
    wait_s: float
    produce_s: float
    slowest: int
    slowest_s: float


class StepsDone(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Wafer → chief: `done` steps are complete, and their results are in the result slots.

    With gradient accumulation these are batches, and the steps that end are complete.

    samples: number of valid rows.
    seconds: time of the steps, including waits for batches.
    input: one entry for each streamer whose batches the steps used.
    weights_s, first_group_s: waits for weights, and for those of a step's first visit.
    checkpoint_s: waits for updates that a checkpoint held back.
    finished: the data are exhausted.
    bad_loss: loss of the step after them, which was not applied.
    uncounted: index in the batch's counts if no label of that step counts.
    """

    done: int
    samples: int
    seconds: float
    input: tuple[StreamerUse, ...] = ()
    finished: bool = False
    bad_loss: float | None = None
    uncounted: int | None = None
    weights_s: float = 0.0
    first_group_s: float = 0.0
    checkpoint_s: float = 0.0
