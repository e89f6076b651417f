"""Steps of users' loops, recorded and compiled, compared with PyTorch's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from support.programs import Machine, options_of

from csrun.base.mode import ExecutionMode
from csrun.cirh.algorithms import Algorithm, SgdAttr
from csrun.compiler import compile_model
from csrun.pytorch.lower.interpret import interpret, reader_of
from csrun.pytorch.lower.to_cirh import module_of
from csrun.pytorch.record.recorder import StepRecorder
from csrun.pytorch.record.recording import Recording
from csrun.records.torch_names import stored_name

Loop = Callable[[torch.nn.Module, tuple[Any, ...]], Any]  # one step up to optimizer.step()


def supervised(criterion: Callable[..., Any]) -> Loop:
    """Step of a plain loop: zero_grad, forward, loss, backward."""

    def step(model: torch.nn.Module, batch: tuple[Any, ...]) -> Any:
        *inputs, labels = batch
        model.zero_grad()
        loss = criterion(model(*inputs), labels)
        loss.backward()
        return loss

    return step


def record(model: torch.nn.Module, batch: Sequence[Any], step: Loop) -> Recording:
    """Recording of a step."""
    recorder = StepRecorder(model)
    recorder.reader = reader_of(recorder)
    with recorder:
        step(model, tuple(recorder.batch(tuple(batch))))
    return recorder.finish()


@dataclass
class Beside:
    """A step in PyTorch, in the interpreter, and in the compiled program."""

    model: torch.nn.Module
    batch: Sequence[Any]
    step: Loop
    root: Path
    mode: ExecutionMode = ExecutionMode.PIPELINED
    algorithm: Algorithm = field(default_factory=lambda: SgdAttr.of(0.1, momentum=0.9))

    def __post_init__(self) -> None:
        self.recording = record(self.model, self.batch, self.step)
        names = [name for name, _ in self.model.named_parameters()]
        self.module = module_of(self.recording, dict.fromkeys(names, self.algorithm))

    def theirs(self) -> tuple[Any, dict[str, Any]]:
        """Loss and gradients of PyTorch."""
        loss = self.step(self.model, tuple(self.batch))
        found = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        return loss.detach(), {name: grad.clone() for name, grad in found.items()}

    def interpreted(self) -> tuple[Any, dict[str, Any]]:
        """Loss and gradients of the interpreter."""
        gradients = self.recording.gradients
        found = interpret(self.recording, [self.recording.loss, *gradients.values()])
        return found[self.recording.loss], {n: found[ref] for n, ref in gradients.items()}

    def machine(self) -> Machine:
        """Machine of the program with the model's weights and buffers."""
        executable = compile_model(
            self.module, self.root, options_of(self.mode, group_bytes=1)
        ).executable
        named = (*self.model.named_parameters(), *self.model.named_buffers())
        stored = {p.name for p in executable.plan.parameters}
        values = {stored_name(n): p.detach().numpy().copy() for n, p in named}
        return Machine(executable, {n: v for n, v in values.items() if n in stored})

    def ours(self, machine: Machine | None = None) -> tuple[float, dict[str, Any]]:
        """Loss and gradients of the compiled program in a machine's first step."""
        machine = machine or self.machine()
        loss, gradients = machine.train([x.numpy() for x in self.batch])
        names = {stored_name(name): name for name, _ in self.model.named_parameters()}
        return loss, {names[n]: torch.from_numpy(g) for n, g in gradients.items() if n in names}

    def check(self, rel: float = 1e-5, gradient_rel: float = 1e-4) -> None:
        """The interpreter gives PyTorch's bits; the program PyTorch's numbers, within limits.

        A gradient may be exactly zero, as that of attention's key bias: then both sides hold
        rounding noise, which counts against the global norm.

        Raises: AssertionError naming the gradient
        """
        loss, gradients = self.theirs()
        again, interpreted = self.interpreted()
        assert torch.equal(loss, again)
        assert set(interpreted) == set(gradients)
        for name, gradient in gradients.items():
            assert torch.equal(interpreted[name], gradient), f"interpreted: {name}"
        compiled, ours = self.ours()
        assert abs(compiled - loss.item()) <= rel * abs(loss.item())
        assert set(ours) >= set(gradients)
        overall = torch.stack([g.norm() for g in gradients.values()]).norm().item()
        least = 1e-2 * overall / sqrt(len(gradients))
        for name, gradient in gradients.items():
            distance = (ours[name] - gradient).norm().item()
            assert distance <= gradient_rel * max(gradient.norm().item(), least), name
