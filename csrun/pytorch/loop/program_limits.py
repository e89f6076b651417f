"""Warnings about steps with many graphs, each of which is a program, and their limits."""

import logging
from collections.abc import Collection
from typing import NamedTuple

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.step.variant import StepVariant

MOST_STATES = 16  # states of the guards for one batch: one program each
MOST_GRAPHS = 64  # graphs of one batch if all steps are recorded
WARNED = 8, 16, 32  # programs after which there is a warning

log = logging.getLogger("csrun")


class ProgramChange(NamedTuple):
    """Difference between the programs of a step. line: with the user's file; each: what has
    several.
    """

    line: str
    each: str
    remedy: str


def _change_of(
    recorded: RecordedStep, cause: str, first: StepVariant, are_edits_apart: bool
) -> ProgramChange:
    """Return the difference between the first variant of a part of the loop and a recorded step."""
    graph = recorded.graph
    if line := graph.host_line:
        of_batch = f"{line}: the shape of a result depends on the batch"
        what = cause if "shape of a result" in cause else of_batch
        return ProgramChange(what, "shape", "use torch.where, or multiply by the mask")
    what = graph.difference(first, are_edits_apart)
    if graph.has_other_inputs(first):
        return ProgramChange(what, "shape of the batch", "pad batches to a few lengths")
    if "different" in what:
        return ProgramChange(what, "value", "pass what changes with the batch, as a tensor")
    return ProgramChange(
        what, "branch", "take fewer branches, or compute all and choose by torch.where"
    )


def check_graph_count(
    recorded: RecordedStep, cause: str, alike: Collection[StepVariant], are_edits_apart: bool
) -> None:
    """Warn before a recorded step gets the 8th, 16th or 32nd program of its part.

    cause: reason why all steps are recorded, if they are.
    alike: variants so far.

    Raises: UsageError beyond the limit
    """
    count = len(alike) + 1
    if count <= MOST_GRAPHS and count not in WARNED:
        return
    change = _change_of(recorded, cause, next(iter(alike)), are_edits_apart)
    of_each = f"one for each {change.each}: {change.remedy}"
    if count > MOST_GRAPHS:
        raise UsageError(
            f"{change.line}, and the step has had more than {MOST_GRAPHS} graphs, each of which is "
            f"compiled to a program, {of_each}"
        )
    because = f" ({cause})" if cause and cause != change.line else ""
    has = f"the step has {count} programs, of at most {MOST_GRAPHS}"
    log.warning(f"{change.line}: {has}, {of_each}{because}")


def check_state_count(alike: Collection[StepVariant], changed: str) -> None:
    """Warn in the same way if values that forward reads change. changed: name of the last one.

    Raises: UsageError beyond the limit
    """
    count, remedy = len(alike) + 1, "change it less often, or pass it with the batch, as a tensor"
    if count > MOST_STATES:
        raise UsageError(
            f"{user_line()}: what forward reads has had more than {MOST_STATES} values (the last "
            f"to change was {changed}), and each is compiled to a program: {remedy}"
        )
    if count in WARNED[:1]:
        log.warning(
            f"{user_line()}: the step has {count} programs, of at most {MOST_STATES}, one for each "
            f"value of what forward reads (the last to change was {changed}): {remedy}"
        )
