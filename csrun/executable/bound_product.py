"""Matrix products in machine code, bound to arrays."""

from collections.abc import Callable, Sequence
from ctypes import addressof, c_int64
from dataclasses import dataclass
from typing import Any

from csrun.executable.arrays import Array
from csrun.executable.bound_kernel import Workspace
from csrun.executable.kernel_signature import KernelArray, ProductSignature
from csrun.executable.product_operand import ProductOperand
from csrun.executable.products import ProductPlan, plan_product
from csrun.executable.team import BoundCall, Job, bind_jobs

_MOST_KEPT = 64  # calls cached for each product, by the addresses of its inputs


@dataclass(frozen=True)
class ProductBinder:
    """Function of the program that binds a matrix product; NumPy's form is used for other
    layouts.
    """

    workspace: Workspace
    signature: ProductSignature
    numpy_form: Callable[..., Callable[..., None]]

    def __call__(self, *arrays: Any) -> Callable[..., None]:
        """Bind arrays; return the function that a step calls."""
        signature = self.signature
        operands = (signature.a, signature.b, signature.out)
        if any(operand.is_input for operand in operands):
            return InputProduct(self, operands, arrays, self.numpy_form(*arrays))
        call = self.bind([arrays[o.argument] for o in operands], arrays)
        return call or self.numpy_form(*arrays)

    def bind(self, operands: Sequence[Array], kept: object) -> BoundCall | None:
        """Return the call for a, b and out; None if machine code does not support their layout.

        kept: arrays that the call keeps alive.
        """
        workspace = self.workspace
        left, right, result = map(ProductOperand.of, operands)
        packed, threads = workspace.packed.ctypes.data, len(workspace.scratch)
        pairs = workspace.pairs if self.signature.in_pairs else None
        tile = pairs or workspace.tile
        job_number = 0 if workspace.team is None else workspace.team.address
        plan = plan_product(
            left, right, result, self.signature.adds, packed, tile, threads, job_number
        )
        return None if plan is None else _bound(workspace, plan, kept)


def _bound(workspace: Workspace, plan: ProductPlan, kept: object) -> BoundCall:
    jobs, words = [], []
    for step in plan.steps:
        own = [
            (c_int64 * len(step.words))(scratch.ctypes.data, *step.words[1:])
            for scratch in workspace.scratch
        ]
        words.append(own)
        places = [addressof(each) for each in own]
        jobs.append(Job(workspace.code.address(step.function), places, step.rows, step.chunk))
    return bind_jobs(workspace.code, workspace.team, jobs, (workspace, words, kept))


class InputProduct:
    """A matrix product with inputs of the batch, whose addresses repeat after a few batches."""

    def __init__(
        self,
        binder: ProductBinder,
        operands: tuple[KernelArray, ...],
        arrays: tuple[Array, ...],
        numpy_form: Callable[..., None],
    ) -> None:
        self._binder, self._operands, self._arrays = binder, operands, arrays
        self._numpy_form = numpy_form
        self._calls: dict[tuple[object, ...], BoundCall | None] = {}

    def __call__(self, *inputs: Array) -> None:
        """Multiply."""
        key = tuple((a.__array_interface__["data"], a.shape, a.strides, a.dtype) for a in inputs)
        if key not in self._calls:
            if len(self._calls) == _MOST_KEPT:
                self._calls.clear()
            self._calls[key] = self.bind(*inputs)
        call = self._calls[key]
        if call is None:
            self._numpy_form(*inputs)
        else:
            call()

    def bind(self, *inputs: Array) -> BoundCall | None:
        """Return the call for these inputs; None if machine code does not support their layout."""
        own = [(inputs if o.is_input else self._arrays)[o.argument] for o in self._operands]
        # Only the addresses are kept, so that batches are not kept in memory.
        return self._binder.bind(own, self._arrays)
