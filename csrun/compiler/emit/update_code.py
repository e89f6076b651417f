"""The update part of a program: a function a group, over ranges of the store's flat regions.

Consecutive parameters with one optimizer are one range, whose loops are those of the optimizer's
formulas. Updates are elementwise, so that no range changes a bit. Those of a large group are two
functions, of as many elements each, which may run at once.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, product, zip_longest
from math import prod

import numpy as np

from csrun.compiler.graph.array import Array
from csrun.compiler.lair.dialect import KernelOp
from csrun.compiler.lair.flat import TILE_ELEMENTS, cut, flat_loop
from csrun.compiler.lair.formula import Formula, Number, Values
from csrun.compiler.lair.loop import KernelLoop
from csrun.compiler.lair.text import LoopText
from csrun.compiler.optimizers import CYCLED, Optimizer, PerTensor
from csrun.compiler.plan.store_layout import Layout, nbytes_of_parameter
from csrun.executable import Group, Parameter, Schedule, StepNumber

IS_CLIPPED, DECAYS = "step.clip != 1", "weight_decay"
HALVES = "front", "back"
HALVED_FROM = 4 * TILE_ELEMENTS  # of a group; fewer are updated before a thread is awake


@dataclass(frozen=True)
class Branch:
    """The loop of those steps in which all of the conditions hold, and none of those before it."""

    conditions: tuple[str, ...]
    loop: KernelLoop


@dataclass(frozen=True)
class UpdateLoops:
    """The loops of an optimizer, whatever the length of a range.

    arrays: the flat regions that it works on. branches: from the one with most conditions to that
    with none; what a step does not need, it does not compute. finish: of its second pass.
    """

    arrays: tuple[str, ...]
    branches: tuple[Branch, ...]
    finish: KernelLoop | None

    @classmethod
    def of(cls, optimizer: Optimizer, dtype: str, is_clipped: bool) -> "UpdateLoops":
        """The loops over arrays of this type; with `is_clipped` a step may scale gradients."""
        arrays = ("weights", "gradients", *optimizer.slots)
        stem = f"update/{type(optimizer).__name__.lower()}"
        decays = (True, False) if isinstance(optimizer.weight_decay, StepNumber) else (None,)
        branches = []
        for clips, has_decay in product((True, False) if is_clipped else (None,), decays):
            conditions = (*([IS_CLIPPED] if clips else []), *([DECAYS] if has_decay else []))
            own = optimizer.without_decay() if has_decay is False else optimizer
            scales: list[Number] = ["step.clip"] if clips else []
            scales += [-1.0] if own.maximize else []
            formula = _scaled(own, scales) if scales else own.update
            branches.append(Branch(conditions, flat_loop(stem, arrays, dtype, formula)))
        finish = None
        if isinstance(optimizer, PerTensor):
            finish = flat_loop(f"{stem}/finish", arrays[:2], dtype, optimizer.finish)
        return cls(arrays, tuple(branches), finish)

    @property
    def kernels(self) -> list[KernelOp]:
        """Kernels, as `lair` prints them."""
        loops = [
            *(branch.loop for branch in self.branches),
            *([self.finish] if self.finish else []),
        ]
        return [loop.op for loop in loops]


def _scaled(optimizer: Optimizer, scales: Sequence[Number]) -> Formula:
    """The update by gradients that are multiplied by these numbers."""

    def update(old: Values) -> Values:
        gradients = old["gradients"]
        for scale in scales:
            gradients = gradients * scale
        return optimizer.update({**old, "gradients": gradients})

    return update


@dataclass(frozen=True)
class ProgramUpdates:
    """Updates of a program: parameters by optimizers, states by their next values.

    A state's is where others have their gradients. With `is_clipped` gradients are measured, and
    scaled as the step says.
    """

    optimizers: Mapping[str, Optimizer]
    states: Collection[str]
    is_clipped: bool
    dtype: str

    @cached_property
    def loops(self) -> dict[Optimizer, UpdateLoops]:
        """Loops of each optimizer."""
        different = dict.fromkeys(self.optimizers.values())
        return {each: UpdateLoops.of(each, self.dtype, self.is_clipped) for each in different}

    @property
    def kernels(self) -> list[KernelOp]:
        """Kernels, as `lair` prints them."""
        return [kernel for loops in self.loops.values() for kernel in loops.kernels]


@dataclass(frozen=True)
class ElementRange:
    """Elements start..stop of a group's flat arrays, updated alike."""

    start: int
    stop: int
    optimizer: Optimizer


def update_functions(layout: Layout, updates: ProgramUpdates) -> list[str]:
    """The update part. Groups have their tiles of scratch in common; two halves have their own."""
    lines: list[str] = []
    names, squares, halved = [], [], []
    parameters: dict[str, list[Parameter]] = {}
    for p in layout.parameters:
        parameters.setdefault(p.layer, []).append(p)
    halves: list[_Half] = []
    for group in layout.groups if updates.optimizers or updates.states else ():
        own = [p for layer in group.layers for p in parameters[layer]]
        functions = _group_functions(group, own, updates)
        halves += functions
        lines += [line for function in functions for line in function.text()]
        names.append(f"update_{group.index}")
        if len(functions) > 1:
            front, back = (function.name for function in functions)
            lines += [
                "",
                f"def update_{group.index}(step):",
                f"    {front}(step)",
                f"    {back}(step)",
            ]
            halved.append(f"{group.index}: ({front}, {back})")
        if updates.is_clipped:
            squares.append(f"squares_{group.index}")
            gradients = _gradients(group, [p for p in own if p.name in updates.optimizers])
            lines.append(f"squares_{group.index} = sums_of_squares([{gradients}])")
    found = f"[{', '.join(names)}], [{', '.join(squares)}], {{{', '.join(halved)}}}"
    return [
        "def bind_update(v, runtime):",
        *(f"    {line}" for line in _scratch(halves, updates.dtype)),
        *(f"    {line}" if line else "" for line in lines),
        f"    return UpdateProgram({found})",
    ]


def _scratch(halves: Sequence["_Half"], dtype: str) -> Iterator[str]:
    """Lines that make the tiles which the first halves have in common, and the second ones."""
    for number in {half.number: None for half in halves if half.ranges}:
        tiles = [each.scratch for h in halves if h.number == number for each in h.ranges]
        shape = max(map(len, tiles)), max(map(max, tiles))
        yield f"scratch_{number} = np.empty({shape}, '{dtype}')"


def _next_values(group: Group, states: Sequence[Parameter]) -> list[str]:
    """Lines that give states their next values."""
    lines = []
    for p in states:
        start = (p.offset_bytes - group.offset_bytes) // np.dtype(p.dtype).itemsize
        place = f'/{group.index}"][{start}:{start + prod(p.shape)}]'
        lines.append(f'copyto(v["weights{place}, v["gradients{place})  # {p.name}')
    return lines


def _gradients(group: Group, parameters: Sequence[Parameter]) -> str:
    """Each parameter's, without what only fills up its place."""
    found = []
    for p in parameters:
        start = (p.offset_bytes - group.offset_bytes) // np.dtype(p.dtype).itemsize
        found.append(f'v["gradients/{group.index}"][{start}:{start + prod(p.shape)}]')
    return ", ".join(found)


def _ranges(
    group: Group, parameters: Sequence[Parameter], optimizers: Mapping[str, Optimizer]
) -> list[ElementRange]:
    ranges: list[ElementRange] = []
    for p in parameters:
        optimizer = optimizers.get(p.name)
        if optimizer is None:
            continue
        itemsize = np.dtype(p.dtype).itemsize
        start = (p.offset_bytes - group.offset_bytes) // itemsize
        stop = start + nbytes_of_parameter(p) // itemsize
        alike = ranges and (ranges[-1].optimizer, ranges[-1].stop) == (optimizer, start)
        if isinstance(optimizer, PerTensor):
            ranges.append(ElementRange(start, start + prod(p.shape), optimizer))
        elif alike:
            ranges[-1] = ElementRange(ranges[-1].start, stop, optimizer)
        else:
            ranges.append(ElementRange(start, stop, optimizer))
    return ranges


def _group_functions(
    group: Group, parameters: Sequence[Parameter], updates: ProgramUpdates
) -> list["_Half"]:
    """A group's function, or both."""
    ranges = _ranges(group, parameters, updates.optimizers)
    next_values = _next_values(group, [p for p in parameters if p.name in updates.states])
    elements = sum(part.stop - part.start for part in ranges)
    parts = [ranges]
    if elements >= HALVED_FROM:
        parts = [each for each in _halves(ranges, elements) if each]
    found, numbers = [], count()
    for number, part in enumerate(parts):
        name = f"update_{group.index}" if len(parts) == 1 else f"{HALVES[number]}_{group.index}"
        each = [
            _RangeUpdate(group.index, next(numbers), number, r, updates.loops[r.optimizer])
            for r in part
        ]
        found.append(_Half(name, number, each, [] if number else next_values))
    return found


def _halves(
    ranges: Sequence[ElementRange], elements: int
) -> tuple[list[ElementRange], list[ElementRange]]:
    """The ranges up to the middle, where a tile ends, and those after it.

    Where an optimizer looks at a whole tensor, that is in the half which it begins in.
    """
    front: list[ElementRange] = []
    back: list[ElementRange] = []
    left = -(-elements // (2 * TILE_ELEMENTS)) * TILE_ELEMENTS
    for part in ranges:
        length = part.stop - part.start
        if left <= 0:
            back.append(part)
        elif length <= left or isinstance(part.optimizer, PerTensor):
            front.append(part)
        else:
            middle = part.start + left
            front.append(ElementRange(part.start, middle, part.optimizer))
            back.append(ElementRange(middle, part.stop, part.optimizer))
        left -= length
    return front, back


@dataclass(frozen=True)
class _Half:
    """A function that updates a group, or the first or second half of it.

    first: lines before all ranges.
    """

    name: str
    number: int
    ranges: Sequence["_RangeUpdate"]
    first: Sequence[str]

    def text(self) -> list[str]:
        """Text of its bindings, and the function."""
        bindings = [line for each in self.ranges for line in each.bindings()]
        body = [*self.first, *(line for each in self.ranges for line in each.lines())]
        return ["", *bindings, f"def {self.name}(step):", *_indented(body or ["pass"])]


def _at(rate: Schedule | StepNumber) -> str:
    """A function of the step."""
    if isinstance(rate, StepNumber):
        return f'step_number(v["numbers"], {rate.index})'
    return f"schedules.{rate!r}.at"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


@dataclass(frozen=True)
class _RangeUpdate:
    """The text of a range's update: number `number` of a group's, in one of its halves."""

    group: int
    number: int
    half: int
    part: ElementRange
    loops: UpdateLoops

    @property
    def scratch(self) -> list[int]:
        """Elements of each tile; the loop that has most needs all of them."""
        tiles = [[text.sized(array).shape[0] for array in text.own] for text in self._texts]
        return [max(sizes) for sizes in zip_longest(*tiles, fillvalue=0)]

    def bindings(self) -> list[str]:
        """Lines bound once: arrays, tiles, the schedule, the sums that the optimizer reads."""
        optimizer, own = self.part.optimizer, self._own
        place = f'/{self.group}"][{self.part.start}:{self.part.stop}]'
        lines = [f'{region}_{own} = v["{region}{place}' for region in self.loops.arrays]
        for number, size in enumerate(self.scratch):
            lines.append(f"tile_{number}_{own} = scratch_{self.half}[{number}, :{size}]")
        lines += [line for text in self._texts for line in text.prepare(self._name)]
        lines.append(f"rate_{own} = {_at(optimizer.learning_rate)}")
        if isinstance(decay := optimizer.weight_decay, StepNumber):
            lines.append(f"decay_{own} = {_at(decay)}")
        if optimizer.cycled:
            lines.append(f"cycled_{own} = {_at(optimizer.cycled)}")
        if isinstance(optimizer, PerTensor):
            lines.append(f"whole_{own} = sums_of_squares([weights_{own}, gradients_{own}])")
        return lines

    def lines(self) -> list[str]:
        """Lines run in each step."""
        optimizer, own = self.part.optimizer, self._own
        lines = [f"learning_rate = rate_{own}(step.index)"]
        if isinstance(optimizer.weight_decay, StepNumber):
            lines.append(f"weight_decay = decay_{own}(step.index)")
        if optimizer.cycled:
            lines.append(f"{CYCLED} = cycled_{own}(step.index)")
        lines += optimizer.factors()
        *branches, last = (text.emit(self._name) for text in self._branches)
        for number, loop in enumerate(branches):
            conditions = " and ".join(self.loops.branches[number].conditions)
            lines += [f"{'elif' if number else 'if'} {conditions}:", *_indented(loop)]
        lines += ["else:", *_indented(last)] if branches else last
        if isinstance(optimizer, PerTensor):
            lines += optimizer.whole(f"whole_{own}")
        lines += [line for text in self._finish for line in text.emit(self._name)]
        return lines

    @property
    def _own(self) -> str:
        return f"{self.group}_{self.number}"

    def _name(self, array: Array) -> str:
        """The variable of a region's range, or of a tile of scratch."""
        return f"{array.name.rpartition('/')[2]}_{self._own}"

    @property
    def _branches(self) -> list[LoopText]:
        loops = [branch.loop for branch in self.loops.branches]
        return [self._cut(loop, f"_{n}" if n else "") for n, loop in enumerate(loops)]

    @property
    def _finish(self) -> list[LoopText]:
        finish = self.loops.finish
        return [] if finish is None else [self._cut(finish, "_finish")]

    @property
    def _texts(self) -> list[LoopText]:
        return self._branches + self._finish

    def _cut(self, loop: KernelLoop, which: str) -> LoopText:
        return cut(loop.text, self.part.stop - self.part.start, f"{self._own}{which}")
