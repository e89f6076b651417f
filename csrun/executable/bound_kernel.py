"""Kernels in machine code, bound to arrays."""

from collections.abc import Callable, Sequence
from ctypes import Array as CArray
from ctypes import addressof, c_double, c_void_p
from dataclasses import dataclass
from typing import Any

from csrun.executable.arrays import Array
from csrun.executable.kernel_signature import KernelSignature
from csrun.executable.machine_code import MachineCode
from csrun.executable.products import Tile
from csrun.executable.team import BoundCall, Job, Team, bind_jobs

CHUNKS = 4  # of a kernel's rows per thread, so that others take over the rows of a late thread
_Arguments = CArray[c_void_p]


@dataclass(frozen=True)
class Workspace:
    """Code, threads and memory shared by the kernels of a program.

    scratch: memory of each thread.
    parts: memory in which the threads of a call exchange partial results.
    packed: packed operand of a matrix product, shared by all threads.
    tile: register tile of the code of matrix products.
    pairs: register tile for pairs of bfloat16; None if the CPU lacks the instructions.
    """

    code: MachineCode
    team: Team | None
    scratch: Sequence[Array]
    parts: Array
    packed: Array
    tile: Tile
    pairs: Tile | None = None


@dataclass(frozen=True)
class KernelBinder:
    """Function of the program that binds a kernel to arrays; NumPy's form is used for other
    layouts.
    """

    workspace: Workspace
    signature: KernelSignature
    numpy_form: Callable[..., Callable[..., None]]

    def __call__(self, *arrays: Any) -> Callable[..., None]:
        """Bind arrays; return the function that a step calls."""
        signature = self.signature
        bound = [each for each in signature.arrays if not each.is_input]
        if not all(each.fits(arrays[each.argument]) for each in bound):
            return self.numpy_form(*arrays)
        constants: list[Array] = []
        if signature.constants:
            constants = [*vars(self.numpy_form(*arrays))["constants"]]
        kernel = BoundKernel(self.workspace, signature, arrays, constants)
        return kernel if signature.inputs or signature.numbers else kernel.run


class BoundKernel:
    """A kernel bound to arrays, called with the inputs of a batch and the numbers of a step."""

    def __init__(
        self,
        workspace: Workspace,
        signature: KernelSignature,
        arrays: Sequence[Any],
        constants: Sequence[Array],
    ) -> None:
        own = [None if a.is_input else arrays[a.argument] for a in signature.arrays]
        own += constants
        self._signature, self._workspace = signature, workspace
        self.has_numbers = signature.numbers > 0
        self._inputs = [(n, a) for n, a in enumerate(signature.arrays) if a.is_input]
        self._numbers = (c_double * max(signature.numbers, 1))()
        self._values = _values_of(signature, arrays)
        addresses = [0 if a is None else a.ctypes.data for a in own]
        self._arguments = [
            (c_void_p * (len(own) + 3))(
                *addresses,
                addressof(self._numbers),
                scratch.ctypes.data,
                workspace.parts.ctypes.data,
            )
            for scratch in workspace.scratch
        ]
        self._rows = signature.rows if signature.rows is not None else len(arrays[0])
        self._memory = own, workspace, self._numbers
        self.run = self._call(self._arguments)

    def _call(self, arguments: Sequence[_Arguments]) -> BoundCall:
        """Return the call with these arguments of each thread."""
        workspace = self._workspace
        jobs = self._jobs([addressof(own) for own in arguments])
        return bind_jobs(workspace.code, workspace.team, jobs, (self._memory, arguments))

    def _jobs(self, places: Sequence[int]) -> list[Job]:
        code, signature, rows = self._workspace.code, self._signature, self._rows
        cut, chunks = signature.cut, CHUNKS * len(places)
        chunk = -(-rows // (chunks * cut)) * cut
        jobs = [Job(code.address(signature.function), places, rows, chunk)]
        if before := signature.begin_rows:
            begin = code.address(f"{signature.function}.begin")
            jobs.insert(0, Job(begin, places, before, -(-before // chunks)))
        if signature.has_epilogue:
            jobs.append(Job(code.address(f"{signature.function}.end"), places, 1, 1))
        return jobs

    def __call__(self, *values: Any) -> None:
        """Compute all rows."""
        if not self._signature.inputs:
            self.set_numbers(*values)
            self.run()
            return
        kept = self.set_arguments(*values)
        self.run()
        del kept

    def set_arguments(self, *values: Any) -> list[Array]:
        """Set the inputs and numbers of the next run; the caller keeps the returned arrays
        alive.
        """
        inputs = [
            own if array.fits(own := values[array.argument]) else array.copied(own)
            for _, array in self._inputs
        ]
        self._set_inputs(self._arguments, inputs)
        self.set_numbers(*values[self._signature.inputs :])
        return inputs

    def set_numbers(self, *numbers: Any) -> None:
        """Set the numbers of the next run."""
        for place, number in enumerate(self._values(*numbers)):
            self._numbers[place] = number

    def bind(self, *inputs: Array) -> BoundCall | None:
        """Return the call for these inputs, without numbers; None if one would be copied."""
        if not all(array.fits(inputs[array.argument]) for _, array in self._inputs):
            return None
        arguments = [type(own).from_buffer_copy(own) for own in self._arguments]
        self._set_inputs(arguments, [inputs[array.argument] for _, array in self._inputs])
        return self._call(arguments)

    def _set_inputs(self, threads: Sequence[_Arguments], inputs: Sequence[Array]) -> None:
        for (place, _), own in zip(self._inputs, inputs, strict=True):
            for arguments in threads:
                arguments[place] = own.ctypes.data


def _values_of(signature: KernelSignature, arrays: Sequence[Any]) -> Callable[..., Sequence[float]]:
    """Return the function of a call's numbers: passed through, or computed from the step."""
    if signature.texts:
        text = f"lambda step=None: ({', '.join(signature.texts)},)"
        found: Callable[..., Sequence[float]] = eval(text, {"runtime": arrays[-1]})
        return found
    return (lambda *numbers: numbers) if signature.numbers else lambda: (0.0,)
