"""Integer and boolean buffers of the user's model, which no program has."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import torch

from csrun.executable.arrays import Array
from csrun.pytorch.deferred_init.tape import is_meta
from csrun.pytorch.record.model_tensors import modules_of
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor
from csrun.records.checkpoints import Checkpoint
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
        # of the steps that the wafer may not have computed
        self._increments: deque[tuple[int, Mapping[str, int]]] = deque()
        self._stale: set[str] = set()  # names of those that `write` must set

    def count(self, step: int, increments: Mapping[str, int], computed: int) -> None:
        """Count up, by name, as a step that is queued does.

        computed: number of steps that the wafer has computed.
        """
        if increments:
            self._forget(computed)
            self._counted.update(increments)
            self._increments.append((step, increments))
            self._stale.update(increments)

    def write(self, *, ahead: Mapping[str, int] = MappingProxyType({})) -> None:
        """Set the buffers to the counted values.

        ahead: increments of a step that is not queued, by name.
        """
        stale = self._stale.union(ahead)
        if not stale:
            return
        with unrecorded():
            for name, buffer in self._buffers():
                if name in stale:
                    by = self._counted[name] + ahead.get(name, 0)
                    first = self._first[name][-1][1]
                    buffer.copy_(first + by if by else first)
        self._stale = set(ahead)

    def take(self, step: int) -> None:
        """Take the values that the script or its forward has set, as those from a step on."""
        with unrecorded():
            for name, buffer in self._buffers():
                if name in self._stale:
                    continue
                by, values = self._counted[name], self._first.setdefault(name, [])
                first = buffer - by if by else buffer
                if not values or not torch.equal(first, values[-1][1]):
                    values.append((step, first.clone()))

    def load(self, checkpoint: Checkpoint) -> None:
        """Take a checkpoint's values, as those after its step, which was the last one counted."""
        saved = checkpoint.manifest.tensors
        with unrecorded():
            for name, _ in self._buffers():
                if (stored := stored_name(name)) in saved:
                    value, by = torch.from_numpy(checkpoint.tensor(stored)), self._counted[name]
                    first = value - by if by else value
                    self._first.setdefault(name, []).append((checkpoint.step, first))
                    self._stale.add(name)

    def _forget(self, step: int) -> None:
        """Drop data that is only needed for the values after earlier steps."""
        while self._increments and self._increments[0][0] <= step:
            self._increments.popleft()
        for values in self._first.values():
            while len(values) > 1 and values[1][0] <= step:
                del values[0]

    def after(self, step: int) -> dict[str, Array]:
        """Return the values of a state_dict after a step, by their names in a checkpoint.

        No earlier step may follow.
        """
        self._forget(step)
        ahead: Counter[str] = Counter()
        for _, increments in self._increments:
            ahead.update(increments)
        found = {}
        with unrecorded():
            kept = {name for name, _ in self._buffers(is_persistent=True)}
            for name, values in self._first.items():
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
