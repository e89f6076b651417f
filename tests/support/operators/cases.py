"""What a case of an operator is, and operands that several families try."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from csrun.cirh.ops.base import CirhOp
from csrun.cirh.ops.loss import IGNORE_INDEX

numbers = np.random.default_rng(5)
LABELS = np.array([2, IGNORE_INDEX, 0, 1])


@dataclass(frozen=True)
class Case:
    """An operator on operands; `peer` is PyTorch's, given the module and the tensors.

    result: which one of several is compared.
    """

    op: type[CirhOp]
    peer: Callable
    operands: tuple[np.ndarray, ...]
    properties: tuple[tuple[str, object], ...] = ()
    result: int = 0

    def emit(self, builder, *values):
        """The operator in CIRH."""
        return builder.emit_all(self.op, *values, **dict(self.properties))[self.result]

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


X, Y = normal(4, 3), normal(4, 3)
