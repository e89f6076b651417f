"""What a wafer gives back step by step: losses and outputs, in slots of one block of memory."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csrun.executable import ALIGNMENT_BYTES, Plan, view
from csrun.executable.bind import Array, Bytes

MOST_RESULT_SLOTS = 256  # the most steps between two words of the chief
RESULT_BYTES = 64 << 20  # with large outputs there are fewer slots, so that they take this much


@dataclass(frozen=True)
class StepResult:
    """One step as the host sees it. `loss` is the mean over `rows`; None without a loss.

    Shapes: outputs as the model made them, per-sample ones cut to the valid rows
    """

    step: int
    rows: int
    loss: float | None
    outputs: dict[str, Array]


class ResultSlots:
    """Result slots over memory: a header float64[2] = (loss sum, rows) and every output's array."""

    def __init__(self, plan: Plan, memory: Bytes) -> None:
        self._plan = plan
        buffers = {b.name: b for b in plan.buffers}
        self._outputs = [buffers[o.buffer] for o in plan.outputs]
        slots = len(memory) // result_slot_bytes(plan)
        self._headers: list[npt.NDArray[np.float64]] = []
        self._arrays: list[list[Array]] = []
        for slot in range(slots):
            offset = slot * result_slot_bytes(plan)
            self._headers.append(memory[offset : offset + 16].view(np.float64))
            offset += ALIGNMENT_BYTES
            arrays = []
            for buffer in self._outputs:
                arrays.append(view(memory, offset, buffer.shape, buffer.dtype))
                offset += _aligned(arrays[-1].nbytes)
            self._arrays.append(arrays)

    def record(self, slot: int, loss_sum: float, rows: int, outputs: list[Array]) -> None:
        """Keep one step's results."""
        self._headers[slot][:] = loss_sum, rows
        for kept, array in zip(self._arrays[slot], outputs, strict=True):
            kept[...] = array

    def read(self, slot: int, step: int) -> StepResult:
        """One step's results, copied out."""
        loss_sum, rows = self._headers[slot].tolist()
        outputs = {}
        for output, array in zip(self._plan.outputs, self._arrays[slot], strict=True):
            outputs[output.name] = (array[: int(rows)] if output.per_sample else array).copy()
        loss = loss_sum / rows if self._plan.loss_buffer is not None else None
        return StepResult(step, int(rows), loss, outputs)


def result_slot_bytes(plan: Plan) -> int:
    """Size of one result slot."""
    buffers = {b.name: b for b in plan.buffers}
    total = ALIGNMENT_BYTES
    for output in plan.outputs:
        buffer = buffers[output.buffer]
        nbytes = int(np.prod(buffer.shape, dtype=np.int64)) * np.dtype(buffer.dtype).itemsize
        total += _aligned(nbytes)
    return total


def result_slots(plan: Plan) -> int:
    """How many result slots a run has: the most steps that one order may run."""
    return max(1, min(MOST_RESULT_SLOTS, RESULT_BYTES // result_slot_bytes(plan)))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
