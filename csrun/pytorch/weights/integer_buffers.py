"""Integer and boolean buffers of the user's model, which no program has."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch

from csrun.executable.arrays import Array
from csrun.pytorch.deferred_init.tape import is_meta
from csrun.pytorch.record.model_tensors import modules_of
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor
from csrun.records.torch_names import stored_name


class IntegerBuffers:
    """Values of the model's integer buffers after each step, while the loop is ahead of the wafer.

    A value is a first one and what steps have counted since, such as a batch norm's batches. The
    script, or forward in a recorded step, may set it: then there is another first value.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._first: dict[str, list[tuple[int, torch.Tensor]]] = {}  # by name, from which step on
        self._counted: Counter[str] = Counter()
        self._are_current = True

    def begin(self, step: int) -> None:
        """Take the present values as those from a step on, of buffers that have none yet."""
        with unrecorded():
            for name, buffer in self._buffers():
                if name not in self._first:
                    self._first[name] = [(step, buffer.clone())]

    def count(self, increments: Mapping[str, int]) -> None:
        """Count up, by name, as a step that is queued does."""
        self._counted.update(increments)
        self._are_current &= not increments

    def write(self, *, is_replayed: bool = False) -> None:
        """Set the buffers to what was counted. is_replayed: the script may have written them"""
        if self._are_current and not is_replayed:
            return
        with unrecorded():
            for name, buffer in self._buffers():
                if by := self._counted[name]:
                    buffer.copy_(self._first[name][-1][1] + by)
        self._are_current = True

    def take(self, step: int) -> None:
        """Take the values that the script or its forward has set, as those after a step."""
        with unrecorded():
            for name, buffer in self._buffers():
                by, values = self._counted[name], self._first.setdefault(name, [])
                first = buffer - by if by else buffer
                if not values or not torch.equal(first, values[-1][1]):
                    values.append((step, first.clone()))

    def after(self, step: int, later: Iterable[Mapping[str, int]]) -> dict[str, Array]:
        """Return the values after a step, by their names in a checkpoint.

        Those that a state_dict has. later: increments of steps after it
        """
        ahead: Counter[str] = Counter()
        for increments in later:
            ahead.update(increments)
        found = {}
        with unrecorded():
            kept = {name for name, _ in self._buffers(is_persistent=True)}
            for name, values in self._first.items():
                while len(values) > 1 and values[1][0] <= step:
                    del values[0]
                if name in kept:
                    by = self._counted[name] - ahead[name]
                    value = values[0][1] + by if by else values[0][1]
                    found[stored_name(name)] = value.numpy().copy()
        return found

    def _buffers(self, is_persistent: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield integer and boolean buffers that have memory, by name."""
        for path, module in modules_of(self._model).items():
            for name, buffer in module._buffers.items():
                if buffer is None or isinstance(buffer, TracedTensor) or is_meta(buffer):
                    continue
                is_integer = not (buffer.is_floating_point() or buffer.is_complex())
                is_kept = name not in module._non_persistent_buffers_set
                if is_integer and (is_kept or not is_persistent):
                    yield f"{path}.{name}" if path else name, buffer
