"""The update part of a program: a function a group, over ranges of the flat regions.

Consecutive parameters with one optimizer are one range, and a range longer than a tile is worked
through in tiles that stay in the cache. Updates are elementwise, so neither changes a bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from csrun.compiler.layers import Layout, nbytes_of_parameter
from csrun.compiler.optimizers import Optimizer
from csrun.executable import Group, Parameter

TILE_ELEMENTS = 32 * 1024  # of three or four arrays: half a megabyte, which a core's L2 holds


@dataclass(frozen=True)
class Range:
    """Elements start..stop of a group's flat arrays, updated alike."""

    start: int
    stop: int
    optimizer: Optimizer


def update_functions(layout: Layout, updates: Mapping[str, Optimizer]) -> list[str]:
    """The lines of bind_update."""
    lines = ["def bind_update(v, runtime):"]
    names = []
    for group in layout.groups if updates else ():
        parameters = [p for p in layout.parameters if p.layer in group.layers]
        ranges = _ranges(group, parameters, updates)
        lines += [f"    {line}" if line else "" for line in _group_function(group, ranges)]
        names.append(f"update_{group.index}")
    return [*lines, f"    return UpdateProgram([{', '.join(names)}])"]


def _ranges(
    group: Group, parameters: Sequence[Parameter], updates: Mapping[str, Optimizer]
) -> list[Range]:
    ranges: list[Range] = []
    for p in parameters:
        optimizer = updates.get(p.name)
        if optimizer is None:
            continue
        itemsize = np.dtype(p.dtype).itemsize
        start = (p.offset_bytes - group.offset_bytes) // itemsize
        stop = start + nbytes_of_parameter(p) // itemsize
        if ranges and (ranges[-1].optimizer, ranges[-1].stop) == (optimizer, start):
            ranges[-1] = Range(ranges[-1].start, stop, optimizer)
        else:
            ranges.append(Range(start, stop, optimizer))
    return ranges


def _group_function(group: Group, ranges: Sequence[Range]) -> list[str]:
    before: list[str] = []
    body: list[str] = []
    for number, part in enumerate(ranges):
        name = f"tiles_{group.index}_{number}"
        regions = ("weights", "gradients", *part.optimizer.slots)
        arrays = ", ".join(f'v["{region}/{group.index}"]' for region in regions)
        before.append(f"{name} = tiles({part.start}, {part.stop}, {TILE_ELEMENTS}, {arrays})")
        before.append(
            f"rate_{group.index}_{number} = schedules.{part.optimizer.learning_rate!r}.at"
        )
        body.append(f"learning_rate = rate_{group.index}_{number}(step.index)")
        body += part.optimizer.factors()
        body.append(f"for {', '.join(regions)} in {name}:")
        emitted = part.optimizer.emit("weights", "gradients", part.optimizer.slots)
        body += [f"    {line}" for line in emitted]
    return [
        "",
        *before,
        f"def update_{group.index}(step):",
        *[f"    {b}" for b in body or ["pass"]],
    ]
