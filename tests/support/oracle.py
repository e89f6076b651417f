"""PyTorch's own databases of operators and modules, run through the front end.

A sample is a function of tensors. Its float tensors are trained parameters, activations
(parameters times a number of the batch) or inputs (constants times that number). The samples that
are not refused are compiled as one program, whose loss and gradients are compared with PyTorch's.
"""

from __future__ import annotations

import random
import re
import sys
import types
import unittest
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from support.recorded import Beside, record
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from csrun.base.errors import UsageError
from csrun.cirh.algorithms import SgdAttr
from csrun.pytorch.errors import failure_of
from csrun.pytorch.half_types import HALF_TYPES
from csrun.pytorch.lower.to_cirh import module_of

if "expecttest" not in sys.modules:  # the databases import it, and use nothing of it
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]

SEED = 5
LINE = re.compile(r"\.py:\d+: ")
#: Operators whose results are whatever lies in memory.
UNDEFINED = ("empty", "resize")


class Role(Enum):
    """Source of a sample's floats."""

    PARAMETER = "parameter"
    ACTIVATION = "activation"
    INPUT = "input"


class Outcome(Enum):
    """Result of all samples of an operator or module."""

    EQUAL = "equal"
    PARTLY = "partly"  # some samples are equal, the others are refused
    REFUSED = "refused"
    NOTHING = "nothing"  # PyTorch itself computes no finite numbers of float64, or draws them


@dataclass(frozen=True)
class Sample:
    """A function and its arguments."""

    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Called(torch.nn.Module):
    """A sample as part of a model; `scale` brings its values near 1."""

    def __init__(self, name: str, sample: Sample, role: Role) -> None:
        super().__init__()
        self.name, self.role, self.scale = name, role, 1.0
        self.function = sample.call
        leaves, self.spec = tree_flatten((sample.args, sample.kwargs))
        self.leaves = [_plain(leaf) for leaf in leaves]
        self.floats = torch.nn.ParameterDict()
        for number, leaf in enumerate(self.leaves):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                is_trained = role is not Role.INPUT
                self.floats[str(number)] = torch.nn.Parameter(leaf.clone(), is_trained)

    def forward(self, one: torch.Tensor) -> torch.Tensor:
        """Return the sum of all results, each number with a separate weight."""
        leaves = list(self.leaves)
        for number, parameter in self.floats.items():
            leaves[int(number)] = parameter * (1 if self.role is Role.PARAMETER else one)
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
    """Model that adds up the results of several samples."""

    def __init__(self, parts: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)
        self.weight = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mean over the batch, on which results depend by its mean alone."""
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
    """Outcomes of several operators or modules, by name.

    refused: texts of errors; wrong: results that are neither PyTorch's nor a refusal with a line.
    """

    root: Path
    equal: Counter[str] = field(default_factory=Counter)
    refused: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def outcome(self, name: str) -> Outcome:
        """Return the outcome of all samples of a name."""
        if self.equal[name]:
            return Outcome.PARTLY if self.refused[name] else Outcome.EQUAL
        return Outcome.REFUSED if self.refused[name] else Outcome.NOTHING

    def run(
        self,
        samples: Mapping[str, Sequence[Sample]],
        roles: Sequence[Role],
        refused: Container[str],
    ) -> None:
        """Compare samples with PyTorch's numbers, with each of the roles in turn.

        refused: names of which some samples are expected to be. Each of these samples is recorded
        alone, all others in the common model, or alone as well where one of them is refused.
        """
        parts = [
            part
            for name, own in samples.items()
            for number, sample in enumerate(own)
            if _is_comparable(part := Called(name, sample, roles[number % len(roles)]))
        ]
        parts = [part for part in parts if part.name not in refused or self._is_recorded(part)]
        if not parts:
            return
        try:
            beside = Beside(Model(parts), BATCH, _step, self.root)
        except Exception:
            parts = [part for part in parts if part.name in refused or self._is_recorded(part)]
            beside = None
        if parts:
            self._compare(parts, beside)

    def _is_recorded(self, part: Called) -> bool:
        """Return whether csrun takes a sample, and note its refusal."""
        model = Model([part])
        try:
            _imported(model)
        except Exception as error:
            self._refuse(part.name, error, model)
            return False
        return True

    def _refuse(self, name: str, error: Exception, model: Model) -> None:
        """Note a refusal, worded as the Session words it."""
        said = error if isinstance(error, UsageError) else failure_of(error, model)
        if said is None:
            self.wrong[name].append(f"crashed: {type(error).__name__}: {error}")
        elif not LINE.search(str(said)):
            self.wrong[name].append(f"refused without a line: {said}")
        else:
            self.refused[name].append(str(said))

    def _compare(self, parts: Sequence[Called], beside: Beside | None = None) -> None:
        try:
            _check(beside or Beside(Model(parts), BATCH, _step, self.root))
            self.equal.update(part.name for part in parts)
        except (Exception, AssertionError) as error:
            self._blame(parts, f"{type(error).__name__}: {error}")

    def _blame(self, parts: Sequence[Called], what: str) -> None:
        """Find the failing parts by bisection."""
        if len(parts) == 1:
            args = ", ".join(map(_said, parts[0].leaves))
            self.wrong[parts[0].name].append(f"{parts[0].role.value}s ({args}): {what}")
            return
        middle = len(parts) // 2
        self._compare(parts[:middle])
        self._compare(parts[middle:])


def _check(beside: Beside) -> None:
    """Compare the interpreter's and the program's results with PyTorch's."""
    loss, gradients = beside.theirs()
    for what, (our_loss, ours) in (("interpreted", beside.interpreted()), ("", beside.ours())):
        torch.testing.assert_close(float(our_loss), float(loss), rtol=1e-8, atol=1e-10, msg=what)
        for name, gradient in gradients.items():
            same = torch.allclose(ours[name], gradient, rtol=1e-8, atol=1e-10)
            assert same, f"{what or 'compiled'}: {name} is {ours[name]}, PyTorch's {gradient}"


def _said(leaf: Any) -> str:
    return str(list(leaf.shape)) if isinstance(leaf, torch.Tensor) else repr(leaf)


#: PyTorch tags it as one that draws; on the CPU it is called without dropout alone.
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class _Incomparable(TorchDispatchMode):
    """Mode that detects random numbers, which differ from csrun's, and 16-bit types."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        draws = torch.Tag.nondeterministic_seeded in func.tags and func is not _ATTENTION
        result = func(*args, **(kwargs or {}))
        is_half = isinstance(result, torch.Tensor) and result.dtype in HALF_TYPES
        self.found |= draws or is_half
        return result


def _is_comparable(part: Called) -> bool:
    """Return whether PyTorch computes finite numbers of one float type, and draws none.

    The part's result is scaled to about 1 on the way.
    """
    model = Model([part])
    if any(x.dtype is not torch.float64 for x in (*model.parameters(), *model.buffers())
           if x.is_floating_point()):  # fmt: skip
        return False
    incomparable = _Incomparable()
    try:
        with warnings.catch_warnings(), incomparable:
            warnings.simplefilter("ignore")
            loss = _step(model, BATCH)
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            is_finite = all(bool(x.isfinite().all()) for x in (loss, *gradients))
    except Exception:  # PyTorch's or the sample's own, as of sparse tensors
        return False
    part.scale = 1 / max(1.0, abs(float(loss.detach())))
    return is_finite and not incomparable.found


def _imported(model: Model) -> None:
    recording = record(model, BATCH, _step)
    module_of(recording, {name: SgdAttr.of(0.1) for name, _ in model.named_parameters()})


def operators() -> dict[str, Any]:
    """Return PyTorch's operators of float64 by name, as `div.floor_rounding`."""
    from torch.testing._internal.common_methods_invocations import op_db  # which is slow

    named = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}
    return {
        name: op
        for name, op in sorted(named.items())
        if torch.float64 in op.dtypes and not any(word in name for word in UNDEFINED)
    }


def samples_of(op: Any, most: int) -> list[Sample]:
    """Return at most `most` samples of an operator, spread over PyTorch's first 200.

    As in PyTorch's tests of gradients, an operator of symmetric matrices gets the symmetric part of
    its operand, and of its results those that have no defined sign get their absolute values.
    """
    torch.manual_seed(SEED)
    random.seed(SEED)
    inputs = op.sample_inputs("cpu", torch.float64, requires_grad=False)
    chosen = _spread(list(islice(inputs, 200)), most)
    return [Sample(_defined(op, s), (s.input, *s.args), dict(s.kwargs)) for s in chosen]


def _defined(op: Any, sample: Any) -> Callable[..., Any]:
    """Return the operator with operands and results for which PyTorch defines its numbers."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return sample.output_process_fn_grad(op.gradcheck_wrapper(op.op, *args, **kwargs))

    return call


def modules() -> dict[str, Any]:
    """Return PyTorch's modules that have inputs of float64, by name."""
    from torch.testing._internal.common_modules import module_db  # which is slow

    named = {info.name.removeprefix("nn."): info for info in module_db}
    return {name: info for name, info in sorted(named.items()) if torch.float64 in info.dtypes}


def samples_of_module(info: Any, most: int) -> list[Sample]:
    """Return at most `most` samples of a module, half in training and half in evaluation mode."""
    found = []
    for training in (True, False):
        torch.manual_seed(SEED)
        given = info.module_inputs_func(
            info, device="cpu", dtype=torch.float64, requires_grad=False, training=training
        )
        own = [_of_module(info, one, training) for one in given if one.forward_input is not None]
        found += _spread(own, most // 2)
    return found


def _of_module(info: Any, given: Any, training: bool) -> Sample:
    made, forward = given.constructor_input, given.forward_input
    module = info.module_cls(*made.args, **made.kwargs).double().train(training)
    return Sample(module, tuple(forward.args), dict(forward.kwargs))


def _spread(found: list[Any], most: int) -> list[Any]:
    return found[:: max(1, -(-len(found) // most))]
