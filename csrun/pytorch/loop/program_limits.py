"""Warnings about steps with many graphs, each of which is a program; how many are kept."""

import logging
from collections.abc import Collection
from typing import NamedTuple

from csrun.pytorch.errors import user_line
from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.step.variant import StepVariant

MOST_STATES = 16  # programs of one part of the loop that are kept, one for each guard state
MOST_GRAPHS = 64  # the same if its steps are recorded, one for each graph
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


def warn_of_graphs(
    recorded: RecordedStep, cause: str, alike: Collection[StepVariant], are_edits_apart: bool
) -> None:
    """Warn before a recorded step gets the 8th, 16th or 32nd program of its part, or the first one
    that replaces another.

    cause: reason why all steps are recorded, if they are.
    alike: variants so far.
    """
    count = len(alike) + 1
    if count <= MOST_GRAPHS and count not in WARNED:
        return
    change = _change_of(recorded, cause, next(iter(alike)), are_edits_apart)
    because = f" ({cause})" if cause and cause != change.line else ""
    _warn(change.line, count, MOST_GRAPHS, f"{change.each}: {change.remedy}{because}")


def warn_of_states(alike: Collection[StepVariant], changed: str) -> None:
    """Warn in the same way if values that forward reads change. changed: name of the last one."""
    count = len(alike) + 1
    if count > MOST_STATES or count in WARNED[:1]:
        what = f"value of what forward reads (the last to change was {changed})"
        remedy = "change it less often, or pass it with the batch, as a tensor"
        _warn(user_line(), count, MOST_STATES, f"{what}: {remedy}")


def _warn(line: str, count: int, most: int, what: str) -> None:
    has = f"the step has {count} programs, one for each {what}"
    if count > most:
        has = (
            f"the step has had more than {most} programs, one for each {what}. From now on a new "
            "one replaces the least recently used one, which is compiled again when it is needed"
        )
    log.warning(f"{line}: {has}")
