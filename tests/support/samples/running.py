"""Samples as a program: traced, compiled, run, interpreted; and as PyTorch has them.

Several samples are one program: what a compile costs besides its operators is paid once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from support.programs import options_of, step_of
from support.samples.database import torch
from support.steps import Copied
from torch.utils._pytree import tree_flatten, tree_unflatten
from xdsl.dialects.builtin import ModuleOp

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.cirh.reference import ModuleState, interpret
from csrun.compiler import compile_model
from csrun.compiler.passes import run_passes
from csrun.executable import Runtime, state_views, wafer_views
from csrun.nn.initializers import zeros
from csrun.nn.tracer import Tracer


class Way(Enum):
    """How operands of floats come; all others are inputs."""

    INPUTS = "inputs"
    PARAMETERS = "parameters"
    ACTIVATIONS = "activations"  # a parameter times an input of ones
    VIEWS = "views"  # a parameter whose axes are the other way round
    FIRST = "the first a parameter, the others inputs"
    LAST = "the last a parameter, the others inputs"


@dataclass(frozen=True)
class Sample:
    """Arguments of PyTorch's function, and what computes the same in each of the two."""

    theirs: Callable[..., Any]
    ours: Callable[..., Any]
    arguments: tuple[Any, dict[str, Any]]
    has_gradient: bool = True

    @property
    def tensors(self) -> list[Any]:
        """Those among the arguments, in order."""
        return [a for a in tree_flatten(self.arguments)[0] if isinstance(a, torch.Tensor)]

    def doubled(self) -> "Sample":
        """The same with floats of double precision."""
        return self._cast(torch.float64)

    def single(self) -> "Sample":
        """The same with floats of single precision."""
        return self._cast(torch.float32)

    def _cast(self, dtype: torch.dtype) -> "Sample":
        found = [t.to(dtype) if t.is_floating_point() else t for t in self.tensors]
        return replace(self, arguments=self.with_tensors(found))

    def with_tensors(self, tensors: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
        """The arguments with these in the tensors' places."""
        leaves, spec = tree_flatten(self.arguments)
        rest = iter(tensors)
        return tree_unflatten(
            [next(rest) if isinstance(a, torch.Tensor) else a for a in leaves], spec
        )


def differentiated(sample: Sample, way: Way) -> list[bool]:
    """Which of the sample's tensors have a gradient."""
    floats = [t.is_floating_point() for t in sample.tensors]
    if way is Way.INPUTS or not sample.has_gradient:
        return [False] * len(floats)
    if way in (Way.FIRST, Way.LAST):
        places = [i for i, is_float in enumerate(floats) if is_float]
        only = places[0 if way is Way.FIRST else -1] if places else -1
        return [i == only for i in range(len(floats))]
    return floats


@dataclass
class Found:
    """What a program gives: each sample's results, and the gradients of its tensors by place."""

    results: list[list[np.ndarray]]
    gradients: list[dict[int, np.ndarray]]


class Written:
    """Samples as one module, with its inputs and parameters."""

    def __init__(self, samples: Sequence[Sample], way: Way, precision: str) -> None:
        self.samples, self.way, self.precision = samples, way, precision
        self.inputs: dict[str, np.ndarray] = {}
        self.parameters: dict[str, np.ndarray] = {}
        self.slopes: list[np.ndarray] = []
        self.counts: list[int] = []
        self._places: dict[str, tuple[int, int]] = {}
        self.module = self._trace()

    def _trace(self) -> ModuleOp:
        outputs, terms = [], []
        with Tracer(self.precision) as self._tracer:
            for number, sample in enumerate(self.samples):
                with nn.scope(f"s{number}"), self._tracer.layer("sample", "own"):
                    results = self._results(number, sample)
                self.counts.append(len(results))
                outputs += [(f"out{number}_{i}", r) for i, r in enumerate(results)]
                terms += self._terms(number, results[0])
            if not self.inputs:
                self._input("unused", np.zeros(()))
            if not self.parameters or not terms:
                return self._tracer.finish(RunMode.PREDICT, None, None, outputs)
            loss = sum(terms[1:], start=terms[0])
            return self._tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), outputs)

    def _results(self, number: int, sample: Sample) -> list[nn.Tensor]:
        trained = differentiated(sample, self.way)
        operands = [
            self._operand(number, place, tensor.numpy(), trained[place])
            for place, tensor in enumerate(sample.tensors)
        ]
        positional, named = sample.with_tensors(operands)
        found = sample.ours(*positional, **named)
        return list(found) if isinstance(found, list | tuple) else [found]

    def _operand(self, number: int, place: int, array: np.ndarray, trained: bool) -> nn.Tensor:
        name = f"x{number}_{place}"
        if not trained:
            return self._input(name, array)
        turned = self.way is Way.VIEWS and array.ndim > 1
        value = np.ascontiguousarray(array.T) if turned else array
        full_name = f"{self._tracer.builder.scope}/{name}"
        found = self._tracer.parameter(name, value.shape, zeros(value.shape))
        self.parameters[full_name] = value
        self._places[full_name] = number, place
        if self.way is Way.ACTIVATIONS:
            ones = np.ones((1,) * array.ndim, array.dtype)
            return found * self._input(f"one{number}_{place}", ones)
        return nn.transpose(found) if turned else found

    def _input(self, name: str, array: np.ndarray) -> nn.Tensor:
        """One sample of a batch of one."""
        self.inputs[name] = np.array(array, order="C")[None]
        return self._tracer.input(name, (1, *array.shape), array.dtype.name)[0]

    def _terms(self, number: int, result: nn.Tensor) -> list[nn.Tensor]:
        random = np.random.default_rng(number)
        self.slopes.append(np.asarray(random.standard_normal(result.shape), self.precision))
        trained = any(differentiated(self.samples[number], self.way))
        if not trained or result.dtype != self.precision:
            return []
        weighted = result * self._input(f"slope{number}", self.slopes[number])
        axes = range(len(weighted.shape))
        return [nn.sum(weighted, axes) if weighted.shape else weighted]

    def compiled(
        self, root: Path, mode: ExecutionMode, kernels: str = "numpy", threads: int = 1
    ) -> Found:
        """What the generated program gives."""
        run_mode = RunMode.TRAIN if self.parameters and self._trains() else RunMode.PREDICT
        options = options_of(mode, run_mode, group_bytes=200, kernels=kernels)
        executable = compile_model(self.module, root, options).executable
        plan = executable.plan
        arena = np.full(plan.arena_bytes, 0xFF, np.uint8)
        inside = plan.store_in_arena
        store = arena[: plan.store.nbytes] if inside else np.zeros(plan.store.nbytes, np.uint8)
        for name, array in state_views(plan, store).items():
            array[...] = self.parameters.get(name, 0)
        weights = Copied(plan, arena, store)
        program = executable.wafer_program(arena, store, Runtime(5, threads=threads))
        batch = tuple(self.inputs[spec.name] for spec in plan.inputs)
        step = step_of(plan, batch, 1)
        with np.errstate(all="ignore"):  # as an engine, which ends a step whose loss is none
            for number, visit in enumerate(program.visits):
                weights.enter(number)
                visit(batch, step)
                for group in plan.visits[number].completes:
                    weights.deliver(group, step)
        views = wafer_views(plan, arena, store)
        named = {output.name: views[output.buffer] for output in plan.outputs}
        return self._found(named, weights.gradients)

    def _trains(self) -> bool:
        return any(op.name == "cirh.minimize" for op in self.module.ops)

    def interpreted(self) -> Found:
        """What the reference interpreter gives, of the module as the passes left it."""
        state = ModuleState(dict(self.parameters))
        with np.errstate(all="ignore"):
            result = interpret(self.module, dict(self.inputs), state, 1)
        return self._found(result.outputs, result.gradients)

    def after_passes(self) -> ModuleOp:
        """The module, whose gradients are operators of their own."""
        run_passes(self.module)
        return self.module

    def _found(self, outputs: dict, gradients: dict) -> Found:
        results = [
            [np.array(outputs[f"out{n}_{i}"]) for i in range(count)]
            for n, count in enumerate(self.counts)
        ]
        by_place: list[dict[int, np.ndarray]] = [{} for _ in self.samples]
        for name, gradient in gradients.items():
            number, place = self._places[name]
            shape = self.samples[number].tensors[place].shape
            turned = self.way is Way.VIEWS and len(shape) > 1
            by_place[number][place] = np.array(gradient.T if turned else gradient)
        return Found(results, by_place)


def expected(sample: Sample, way: Way, slope: np.ndarray) -> tuple[list[Any], dict[int, Any]]:
    """PyTorch's results, and the gradients of sum(slope * the first one)."""
    trained = differentiated(sample, way)
    leaves = [
        t.detach().clone().requires_grad_(own)
        for t, own in zip(sample.tensors, trained, strict=True)
    ]
    positional, named = sample.with_tensors([leaf.view_as(leaf) for leaf in leaves])
    found = sample.theirs(*positional, **named)
    results = list(found) if isinstance(found, list | tuple) else [found]
    gradients: dict[int, Any] = {}
    if results[0].requires_grad:
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        weighted = (results[0] * torch.from_numpy(slope)).sum()
        given = torch.autograd.grad(weighted, wanted, allow_unused=True, materialize_grads=True)
        places = [place for place, own in enumerate(trained) if own]
        gradients = dict(zip(places, given, strict=True))
    return [r.detach() for r in results], gradients


def compare(ours: np.ndarray, theirs: Any, tolerance: dict[str, float]) -> None:
    """Raises: AssertionError unless they are close as PyTorch has it, of one shape and type."""
    torch.testing.assert_close(torch.from_numpy(ours), theirs, equal_nan=True, **tolerance)
