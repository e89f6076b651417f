"""PyTorch's own databases of operators and modules, run through the front end.

A sample is a function of tensors; its floats are trained parameters, or activations: parameters
times what a batch has. Those that are not refused are compiled as one program, whose loss and
gradients are compared with PyTorch's.
"""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from support.recorded import Beside, record
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from csrun.base.errors import UsageError
from csrun.cirh.algorithms import SgdAttr
from csrun.pytorch.capture.errors import failure_of
from csrun.pytorch.graph.importing import module_of

if "expecttest" not in sys.modules:  # the databases import it, and use nothing of it
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]

SEED = 5
DRAWING = ("dropout", "rand", "bernoulli", "multinomial", "normal", "uniform", "exponential")
DRAWING += ("cauchy", "geometric", "empty", "rrelu", "resize", "fractional_max_pool")


class Role(Enum):
    """Where a sample's floats come from."""

    PARAMETER = "parameter"
    ACTIVATION = "activation"


class Outcome(Enum):
    """What becomes of all samples of an operator or module."""

    EQUAL = "equal"
    PARTLY = "partly refused"
    REFUSED = "refused"
    NOTHING = "nothing to compare"


@dataclass(frozen=True)
class Sample:
    """A function and its arguments."""

    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Called(torch.nn.Module):
    """A sample as a part of a model; `scale` is what brings its values near 1."""

    def __init__(self, name: str, sample: Sample, role: Role) -> None:
        super().__init__()
        self.name, self.role, self.scale = name, role, 1.0
        self.function = sample.call
        leaves, self.spec = tree_flatten((sample.args, sample.kwargs))
        self.leaves = [_plain(leaf) for leaf in leaves]
        self.floats = torch.nn.ParameterDict()
        for number, leaf in enumerate(self.leaves):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                self.floats[str(number)] = torch.nn.Parameter(leaf.clone())

    def forward(self, one: torch.Tensor) -> torch.Tensor:
        """The sum of all results, each number with a slope of its own."""
        leaves = list(self.leaves)
        for number, parameter in self.floats.items():
            is_activation = self.role is Role.ACTIVATION
            leaves[int(number)] = parameter * one if is_activation else parameter * 1
        args, kwargs = tree_unflatten(leaves, self.spec)
        found = self.function(*args, **kwargs)
        numbers = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
        return sum((_weighted(x) for x in numbers), one * 0) * self.scale


def _plain(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _weighted(x: torch.Tensor) -> torch.Tensor:
    slopes = torch.linspace(0.5, 1.5, max(x.numel(), 1), dtype=torch.float64)[: x.numel()]
    return (x.to(torch.float64).reshape(-1) * slopes).sum()


class Model(torch.nn.Module):
    """Several samples, whose results are added up."""

    def __init__(self, parts: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)
        self.weight = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean over the samples of a batch of what depends on it by its mean alone."""
        one = x.mean()
        return sum((part(one) for part in self.parts), self.weight * one)


BATCH = (torch.tensor([[0.75], [1.25]], dtype=torch.float64), torch.zeros(2, dtype=torch.int64))


def _step(model: Any, batch: Any) -> Any:
    model.zero_grad()
    loss = model(batch[0])
    loss.backward()
    return loss


@dataclass
class Report:
    """What became of the samples of several operators or modules, by name."""

    root: Path
    equal: Counter[str] = field(default_factory=Counter)
    refused: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def outcome(self, name: str) -> Outcome:
        """All samples of a name in one word."""
        if self.equal[name]:
            return Outcome.PARTLY if self.refused[name] else Outcome.EQUAL
        return Outcome.REFUSED if self.refused[name] else Outcome.NOTHING

    def run(
        self, samples: Mapping[str, Sequence[Sample]], roles: Sequence[Role] = (*Role,)
    ) -> None:
        """Compare samples with PyTorch's numbers; those that PyTorch refuses are left out."""
        parts = [
            part
            for name, own in samples.items()
            for number, sample in enumerate(own)
            if (part := self._made(name, sample, roles[number % len(roles)]))
        ]
        if parts:
            self._compare(parts)

    def _made(self, name: str, sample: Sample, role: Role) -> Called | None:
        part = Called(name, sample, role)
        model = Model([part])
        if not _is_finite(model):
            return None
        try:
            _imported(model)
        except UsageError as error:
            self._refuse(name, str(error))
            return None
        except Exception as error:  # as the loop that records has it said
            said = failure_of(error, model)
            found = self.refused if said else self.wrong
            found[name].append(str(said or f"crashed: {type(error).__name__}: {error}"))
            return None
        return part

    def _refuse(self, name: str, text: str) -> None:
        names_line = ".py:" in text
        (self.refused if names_line else self.wrong)[name].append(text)

    def _compare(self, parts: Sequence[Called]) -> None:
        try:
            _check(Beside(Model(parts), BATCH, _step, self.root))
            self.equal.update(part.name for part in parts)
        except (Exception, AssertionError) as error:
            self._halves(parts, f"{type(error).__name__}: {error}")

    def _halves(self, parts: Sequence[Called], what: str) -> None:
        """The part that is to blame, by halves."""
        if len(parts) == 1:
            args = ", ".join(map(_said, parts[0].leaves))
            self.wrong[parts[0].name].append(f"{parts[0].role.value}s ({args}): {what}")
            return
        middle = len(parts) // 2
        self._compare(parts[:middle])
        self._compare(parts[middle:])


def _check(beside: Beside) -> None:
    """The interpreter's and the program's numbers are PyTorch's."""
    loss, gradients = beside.theirs()
    for what, (our_loss, ours) in (("interpreted", beside.interpreted()), ("", beside.ours())):
        torch.testing.assert_close(float(our_loss), float(loss), rtol=1e-8, atol=1e-10, msg=what)
        for name, gradient in gradients.items():
            same = torch.allclose(ours[name], gradient, rtol=1e-8, atol=1e-10)
            assert same, f"{what or 'compiled'}: {name} is {ours[name]}, PyTorch's {gradient}"


def _said(leaf: Any) -> str:
    return str(list(leaf.shape)) if isinstance(leaf, torch.Tensor) else repr(leaf)


def _is_finite(model: Model) -> bool:
    """Whether PyTorch computes it, with numbers; it is scaled to about 1 on the way."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = _step(model, BATCH)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        model.parts[0].scale = 1 / max(1.0, abs(float(loss.detach())))
        return all(bool(x.isfinite().all()) for x in (loss, *gradients))
    except Exception:  # of PyTorch's or of the sample's
        return False


def _imported(model: Model) -> None:
    recording = record(model, BATCH, _step)
    module_of(recording, {name: SgdAttr.of(0.1) for name, _ in model.named_parameters()})


def operators() -> dict[str, Any]:
    """PyTorch's operators that have gradients of float64 and draw nothing, by name."""
    from torch.testing._internal.common_methods_invocations import op_db  # which is slow

    named = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}
    return {
        name: op
        for name, op in named.items()
        if torch.float64 in op.dtypes and not any(word in name for word in DRAWING)
    }


def samples_of(op: Any, most: int) -> list[Sample]:
    """Samples of an operator, spread over all that PyTorch has."""
    torch.manual_seed(SEED)
    given = list(islice(_given(op), 200))
    chosen = given[:: max(1, -(-len(given) // most))]
    return [Sample(op.op, (s.input, *s.args), dict(s.kwargs)) for s in chosen]


def _given(op: Any) -> Iterator[Any]:
    yield from op.sample_inputs("cpu", torch.float64, requires_grad=False)


def modules() -> dict[str, Any]:
    """PyTorch's modules that have inputs of float64, by name."""
    from torch.testing._internal.common_modules import module_db  # which is slow

    return {
        info.name.removeprefix("nn."): info
        for info in module_db
        if torch.float64 in info.dtypes and not any(w in info.name.lower() for w in DRAWING)
    }


def samples_of_module(info: Any, most: int) -> list[Sample]:
    """Its constructor's and forward's samples, in training and not."""
    found = []
    for training in (True, False):
        torch.manual_seed(SEED)
        given = info.module_inputs_func(
            info, device="cpu", dtype=torch.float64, requires_grad=False, training=training
        )
        for one in given:
            made = one.constructor_input
            module = info.module_cls(*made.args, **made.kwargs).double().train(training)
            forward = one.forward_input
            if forward is not None:
                found.append(Sample(module, tuple(forward.args), dict(forward.kwargs)))
    return found[:: max(1, -(-len(found) // most))]
