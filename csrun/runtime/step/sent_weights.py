"""Weights in the form sent to the wafer: in mixed precision 16-bit words, and float32 states."""

from collections.abc import Callable

import numpy as np

from csrun.executable import Plan, aligned, flat_views
from csrun.executable.arrays import Bytes
from csrun.executable.store_places import AnyStore


class SentWeights:
    """Bytes of each group's newest weights.

    Updates write the words. Other writers only write the weights, so the next program that runs
    converts them once. narrowed: called with a group after the conversion.
    """

    def __init__(
        self, plan: Plan, store: AnyStore, narrowed: Callable[[int], None] = lambda _: None
    ) -> None:
        self._half, self._narrowed = plan.storage, narrowed
        views = flat_views(plan, store)
        groups = range(len(plan.groups))
        self._weights = [views[f"weights/{group}"] for group in groups]
        self._words = [views[f"words/{group}"] for group in groups] if plan.storage else []
        sent = self._words if plan.storage else self._weights
        self._parts: list[list[Bytes]] = [[array.view(np.uint8)] for array in sent]
        if plan.storage is not None:
            self._add_states(plan)
        self._new: set[int] = set()  # groups whose words match their weights

    def parts(self, group: int) -> list[Bytes]:
        """Return the bytes of a group, in parts."""
        self.refresh(group)
        return self._parts[group]

    def views(self, group: int) -> list[Bytes]:
        """Return the memory of a group's parts, which may be stale."""
        return self._parts[group]

    def refresh(self, group: int) -> None:
        """Update the words of a group from its weights."""
        if self._half is None or group in self._new:
            return
        self._half.narrow(self._weights[group], self._words[group])
        self._new.add(group)
        self._narrowed(group)

    def refresh_all(self) -> None:
        """Update the words of all groups from their weights."""
        for group in range(len(self._weights)):
            self.refresh(group)

    def invalidate(self) -> None:
        """Mark the words as stale, since the weights may have been written."""
        self._new.clear()

    def _add_states(self, plan: Plan) -> None:
        group_of = {layer.name: plan.groups[layer.group] for layer in plan.layers}
        for p in sorted(plan.parameters, key=lambda p: p.offset_bytes):
            if p.is_state:
                group = group_of[p.layer]
                start = p.offset_bytes - group.offset_bytes
                weights = self._weights[group.index].view(np.uint8)
                nbytes = aligned(int(np.prod(p.shape)) * np.dtype(p.dtype).itemsize)
                self._parts[group.index].append(weights[start : start + nbytes])
