"""Update part of a program: one function per group, over ranges of the store's flat regions.

Consecutive parameters with the same optimizer form a range, updated by one loop of the optimizer's
formulas. Updates are elementwise, so ranges do not affect the bits. A large group has two functions
with an equal number of elements each, which may run concurrently.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from math import prod

import numpy as np

from csrun.compiler.emit.update_loops import CLIP, OWN_CLIP, UpdateForm, UpdateLoops
from csrun.compiler.graph.array import Array
from csrun.compiler.lair import flat
from csrun.compiler.lair.loop import KernelLoop
from csrun.compiler.optimizers import CYCLED, EARLIER, Optimizer, PerTensor
from csrun.compiler.plan.store_layout import Layout, nbytes_of_parameter
from csrun.executable import Group, Parameter, Schedule, StepNumber
from csrun.executable.bind import BIND_WORDS

HALVES = "front", "back"
FINISH = "finish"  # second loop of an optimizer with per-tensor norms
# elements of a group; smaller ones are updated before a thread wakes up
HALVED_FROM = 4 * flat.TILE_ELEMENTS


@dataclass(frozen=True)
class ProgramUpdates:
    """Updates of a program: parameters by optimizers, states by their next values.

    The next value of a state is in place of a gradient. Gradients that may be scaled are measured.
    """

    optimizers: Mapping[str, Optimizer]
    states: Collection[str]
    form: UpdateForm

    @cached_property
    def loops(self) -> dict[Optimizer, UpdateLoops]:
        """Loops of each optimizer."""
        different = dict.fromkeys(self.optimizers.values())
        return {each: UpdateLoops.of(each, self.form) for each in different}

    @cached_property
    def narrowing(self) -> KernelLoop | None:
        """Loop that narrows weights to words, if updates do not write them."""
        return self.form.narrowing

    @property
    def kernels(self) -> list[KernelLoop]:
        """Loops of all optimizers, and the one that narrows weights."""
        narrowing = [] if self.narrowing is None else [self.narrowing]
        return [*(loop for loops in self.loops.values() for loop in loops.all), *narrowing]


@dataclass(frozen=True)
class ElementRange:
    """Elements start..stop of a group's flat arrays with the same update.

    is_tensor: they are those of one tensor, whose norms are needed.
    """

    start: int
    stop: int
    optimizer: Optimizer
    is_tensor: bool = False


def update_functions(layout: Layout, updates: ProgramUpdates) -> list[str]:
    """Generate the update part. Groups share tiles of scratch; concurrent halves have separate
    ones.
    """
    lines: list[str] = []
    names, squares, halved = [], [], []
    parameters: dict[str, list[Parameter]] = {}
    for p in layout.parameters:
        parameters.setdefault(p.layer, []).append(p)
    halves: list[_Half] = []
    for group in layout.groups if updates.optimizers or updates.states else ():
        own = [p for layer in group.layers for p in parameters[layer]]
        parts = _group_functions(group, own, updates)
        halves += parts
        lines += [line for part in parts for line in part.text()]
        names.append(f"update_{group.index}")
        if len(parts) > 1:
            front, back = (part.name for part in parts)
            lines += [
                "",
                f"def update_{group.index}(step):",
                f"    {front}(step)",
                f"    {back}(step)",
            ]
            halved.append(f"{group.index}: ({front}, {back})")
        if updates.form.is_measured:
            squares.append(f"squares_{group.index}")
            gradients = _gradients(group, [p for p in own if p.name in updates.optimizers])
            measured = f"[{gradients}]{updates.form.squared}"
            lines.append(f"squares_{group.index} = sums_of_squares({measured})")
    found = f"[{', '.join(names)}], [{', '.join(squares)}], {{{', '.join(halved)}}}"
    return [
        "def bind_update(v, runtime):",
        *(f"    {line}" for line in _scratch(halves, updates.form.dtype)),
        *(f"    {line}" if line else "" for line in lines),
        f"    return UpdateProgram({found})",
    ]


def narrowing_function(narrowing: KernelLoop) -> list[str]:
    """Generate the function that binds weights, and the words that they are narrowed to."""
    run = narrowing.function.bind("run", lambda array: array.name)
    return [f"def {BIND_WORDS}(weights, words):", *_indented([run, "return run"])]


def _scratch(halves: Sequence["_Half"], dtype: str) -> Iterator[str]:
    """Lines that create the scratch tiles of first halves, and of second ones."""
    for number in {half.number: None for half in halves if half.ranges}:
        tiles = [each.scratch for h in halves if h.number == number for each in h.ranges]
        shape = max(map(len, tiles)), max(map(max, tiles))
        yield f"scratch_{number} = np.empty({shape}, '{dtype}')"


def _next_values(group: Group, states: Sequence[Parameter], form: UpdateForm) -> list[str]:
    """Lines that copy the next values of states."""
    lines = []
    for p in states:
        start = (p.offset_bytes - group.offset_bytes) // np.dtype(p.dtype).itemsize
        place = f'/{group.index}"][{start}:{start + prod(p.shape)}]'
        found = f'next/{p.name}"]' if form.reads_words else f"gradients{place}"
        lines.append(f'copyto(v["weights{place}, v["{found})  # {p.name}')
    return lines


def _gradients(group: Group, parameters: Sequence[Parameter]) -> str:
    """Return each parameter's gradients, without padding elements."""
    found = []
    for p in parameters:
        start = (p.offset_bytes - group.offset_bytes) // np.dtype(p.dtype).itemsize
        found.append(f'v["gradients/{group.index}"][{start}:{start + prod(p.shape)}]')
    return ", ".join(found)


def _ranges(
    group: Group, parameters: Sequence[Parameter], updates: ProgramUpdates
) -> list[ElementRange]:
    ranges: list[ElementRange] = []
    for p in parameters:
        optimizer = updates.optimizers.get(p.name)
        if optimizer is None:
            continue
        itemsize = np.dtype(p.dtype).itemsize
        start = (p.offset_bytes - group.offset_bytes) // itemsize
        stop = start + nbytes_of_parameter(p) // itemsize
        continues = ranges and (ranges[-1].optimizer, ranges[-1].stop) == (optimizer, start)
        if isinstance(optimizer, PerTensor) or updates.form.clipping.clip_each is not None:
            ranges.append(ElementRange(start, start + prod(p.shape), optimizer, is_tensor=True))
        elif continues:
            ranges[-1] = ElementRange(ranges[-1].start, stop, optimizer)
        else:
            ranges.append(ElementRange(start, stop, optimizer))
    return ranges


def _group_functions(
    group: Group, parameters: Sequence[Parameter], updates: ProgramUpdates
) -> list["_Half"]:
    """Generate a group's function, or both halves."""
    ranges = _ranges(group, parameters, updates)
    states = [p for p in parameters if p.name in updates.states]
    next_values = _next_values(group, states, updates.form)
    elements = sum(part.stop - part.start for part in ranges)
    parts = [ranges]
    if elements >= HALVED_FROM:
        parts = [each for each in _halves(ranges, elements) if each]
    found, numbers = [], count()
    for number, part in enumerate(parts):
        name = f"update_{group.index}" if len(parts) == 1 else f"{HALVES[number]}_{group.index}"
        each = [
            _RangeUpdate(
                group.index, next(numbers), number, r, updates.loops[r.optimizer], updates.form
            )
            for r in part
        ]
        found.append(_Half(name, number, each, [] if number else next_values))
    return found


def _halves(
    ranges: Sequence[ElementRange], elements: int
) -> tuple[list[ElementRange], list[ElementRange]]:
    """Split the ranges at the middle, at the end of a tile.

    A tensor whose norms are needed belongs to the half in which it begins.
    """
    front: list[ElementRange] = []
    back: list[ElementRange] = []
    left = -(-elements // (2 * flat.TILE_ELEMENTS)) * flat.TILE_ELEMENTS
    for part in ranges:
        length = part.stop - part.start
        if left <= 0:
            back.append(part)
        elif length <= left or part.is_tensor:
            front.append(part)
        else:
            middle = part.start + left
            front.append(ElementRange(part.start, middle, part.optimizer))
            back.append(ElementRange(middle, part.stop, part.optimizer))
        left -= length
    return front, back


@dataclass(frozen=True)
class _Half:
    """A function that updates a group, or its first or second half.

    first: lines before all ranges.
    """

    name: str
    number: int
    ranges: Sequence["_RangeUpdate"]
    first: Sequence[str]

    def text(self) -> list[str]:
        """Text of its bindings, and of the function."""
        bindings = [line for each in self.ranges for line in each.bindings()]
        body = [*self.first, *(line for each in self.ranges for line in each.lines())]
        return ["", *bindings, f"def {self.name}(step):", *_indented(body or ["pass"])]


def _at(rate: Schedule | StepNumber) -> str:
    """Return the text that evaluates a function at the step."""
    if isinstance(rate, StepNumber):
        return f'step_number(v["numbers"], {rate.index})'
    return f"schedules.{rate!r}.at"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


@dataclass(frozen=True)
class _RangeUpdate:
    """Text of a range's update, number `number` of a group's, in one of its halves."""

    group: int
    number: int
    half: int
    part: ElementRange
    loops: UpdateLoops
    form: UpdateForm

    @property
    def scratch(self) -> list[int]:
        """Return the elements of each tile, enough for the loop that needs most."""
        most = max(len(loop.text.own) for loop in self._loops)
        return [min(flat.TILE_ELEMENTS, self.part.stop - self.part.start)] * most

    def bindings(self) -> list[str]:
        """Return the lines that run once: arrays, tiles, loops, the schedule, sums over tensors."""
        optimizer, own = self.part.optimizer, self._own
        place = f'/{self.group}"][{self.part.start}:{self.part.stop}]'
        lines = [f'{region}_{own} = v["{region}{place}' for region in self.loops.arrays]
        for number, size in enumerate(self.scratch):
            lines.append(f"tile_{number}_{own} = scratch_{self.half}[{number}, :{size}]")
        for branch in self.loops.branches:
            lines.append(self._binding(branch.loop, branch.name))
        if self.loops.finish is not None:
            lines.append(self._binding(self.loops.finish, FINISH))
        lines.append(f"rate_{own} = {_at(optimizer.learning_rate)}")
        if isinstance(decay := optimizer.weight_decay, StepNumber):
            lines.append(f"decay_{own} = {_at(decay)}")
        if optimizer.cycled:
            lines.append(f"cycled_{own} = {_at(optimizer.cycled)}")
        if optimizer.earlier:
            lines.append(f"earlier_{own} = {_at(optimizer.earlier)}")
        if isinstance(optimizer, PerTensor):
            lines.append(f"whole_{own} = sums_of_squares([weights_{own}, gradients_{own}])")
        if self.form.clipping.clip_each is not None:
            lines.append(f"squares_{own} = sums_of_squares([gradients_{own}]{self.form.squared})")
        return lines

    def lines(self) -> list[str]:
        """Return the lines that run in each step."""
        optimizer, own = self.part.optimizer, self._own
        lines = [f"learning_rate = rate_{own}(step.index)"]
        if isinstance(optimizer.weight_decay, StepNumber):
            lines.append(f"weight_decay = decay_{own}(step.index)")
        if optimizer.cycled:
            lines.append(f"{CYCLED} = cycled_{own}(step.index)")
        if optimizer.earlier:
            lines.append(f"{EARLIER} = int(earlier_{own}(step.index))")
        lines += optimizer.factors()
        if (longest := self.form.clipping.clip_each) is not None:
            lines.append(f"{OWN_CLIP} = limited({CLIP}, *squares_{own}(), {longest!r})")
        *branches, last = self.loops.branches
        for number, branch in enumerate(branches):
            conditions = " and ".join(branch.conditions)
            lines.append(f"{'elif' if number else 'if'} {conditions}:")
            lines.append(f"    {self._call(branch.loop, branch.name)}")
        call = self._call(last.loop, last.name)
        lines += ["else:", f"    {call}"] if branches else [call]
        if isinstance(optimizer, PerTensor):
            lines += optimizer.whole(f"whole_{own}")
        if self.loops.finish is not None:
            lines.append(self._call(self.loops.finish, FINISH))
        return lines

    @property
    def _own(self) -> str:
        return f"{self.group}_{self.number}"

    @property
    def _loops(self) -> list[KernelLoop]:
        return self.loops.all

    def _variable(self, which: str) -> str:
        """Return the variable of a bound loop."""
        return "_".join(filter(None, ("run", which, self._own)))

    def _name(self, array: Array) -> str:
        """Return the variable of a region's range, or of a scratch tile."""
        return f"{array.name.rpartition('/')[2]}_{self._own}"

    def _binding(self, loop: KernelLoop, which: str) -> str:
        return loop.function.bind(self._variable(which), self._name)

    def _call(self, loop: KernelLoop, which: str) -> str:
        return loop.function.call(self._variable(which), self._name)
