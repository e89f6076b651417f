"""What a case of an operator is, and operands that several families try."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from csrun.cirh.ops.base import CirhOp
from csrun.cirh.ops.loss import IGNORE_INDEX

numbers = np.random.default_rng(5)
AS_TEXT = "a program has the number of samples as text, which is the step's"
LABELS = np.array([2, IGNORE_INDEX, 0, 1])


@dataclass(frozen=True, eq=False)
class Case:
    """An operator on operands; `peer` is PyTorch's, given the module and the tensors.

    result: which one of several is compared; not_compiled: why no program has it as it is.
    """

    op: type[CirhOp]
    peer: Callable
    operands: tuple[np.ndarray, ...]
    properties: tuple[tuple[str, object], ...] = ()
    result: int = 0
    not_compiled: str = ""

    def emit(self, builder, *values):
        """The operator in CIRH."""
        return builder.emit_all(self.op, *values, **dict(self.properties))[self.result]

    @property
    def family(self) -> str:
        """The file of the operator's class."""
        return self.op.__module__.rpartition(".")[2]

    def __str__(self) -> str:
        return "-".join(
            [
                self.op.name.removeprefix("cirh."),
                *(str(a.shape) for a in self.operands),
                *([f"result {self.result}"] if self.result else []),
            ]
        )


def normal(*shape: int) -> np.ndarray:
    """Values of both signs."""
    return numbers.standard_normal(shape)


def positive(*shape: int) -> np.ndarray:
    """Values well above zero."""
    return numbers.uniform(0.5, 2.0, shape)


def case(op, peer, *operands: np.ndarray, **properties: object) -> Case:
    return Case(op, peer, operands, tuple(properties.items()))


def cases(op, peer, count: int, *operands: np.ndarray, **properties: object) -> list[Case]:
    """A case for each result of an operator; `peer` gives them all."""
    return [
        Case(op, lambda *a, r=r: peer(*a)[r], operands, tuple(properties.items()), r)
        for r in range(count)
    ]


def not_compiled(reason: str, *given: Case) -> list[Case]:
    """Cases that are interpreted alone."""
    return [replace(each, not_compiled=reason) for each in given]


X, Y = normal(4, 3), normal(4, 3)
