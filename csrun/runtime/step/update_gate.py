"""Gate between a checkpoint being copied and the updates of the next steps.

Tensors are copied in the order in which a step updates them. The copying side counts them, and an
update waits until the tensors that it changes are counted. In a step, the forward pass and most of
the backward pass precede the first update, so waits are rare.
"""

from collections.abc import Callable
from itertools import chain

from csrun.executable import Plan, state_layout
from csrun.executable.shards import Own
from csrun.runtime.wire.run_time_clock import awake_s


class UpdateGate:
    """Updating side of the gate, one for all programs over a store; owner: plan of its layout.

    Tensors are numbered from 1 in the order of copying.
    own: groups that this process updates.
    held_s: total time that updates have waited, in seconds.
    """

    def __init__(self, owner: Plan, own: Own = None) -> None:
        order = copying_order(owner, own)
        self._numbers = {name: number for number, name in enumerate(order, 1)}
        self._copied = len(self._numbers)
        self._take: Callable[[], object] | None = None
        self.held_s = 0.0

    def hold(self, take: Callable[[], object]) -> int:
        """Start a copy of this many tensors: none is copied yet; `take` waits for one more."""
        self._take, self._copied = take, 0
        return len(self._numbers)

    def last_of_groups(self, plan: Plan) -> list[int]:
        """Return for each group of a program the number of its tensor that is copied last."""
        numbers = ([self._numbers.get(name, 0) for name in names] for names in _tensors(plan))
        return [max(own, default=0) for own in numbers]

    def wait(self, last: int) -> None:
        """Wait until the tensors up to this number are copied."""
        if self._take is None or self._copied >= last:
            return
        began = awake_s()
        while self._copied < last:
            self._take()
            self._copied += 1
        self.held_s += awake_s() - began


def copying_order(plan: Plan, own: Own = None) -> tuple[str, ...]:
    """Return the tensors of the state by name, in the order in which a step updates them.

    own: only of these groups.
    """
    tensors, layout = _tensors(plan), state_layout(plan, own)
    first = chain.from_iterable(tensors[group] for group in plan.deliveries)
    return tuple(name for name in dict.fromkeys(chain(first, layout)) if name in layout)


def _tensors(plan: Plan) -> list[list[str]]:
    """Return the weights of a group, or of which it has a shard, and their optimizer state, by
    name.
    """
    group_of = {layer.name: layer.group for layer in plan.layers}
    state, prefixes = state_layout(plan), ["", *(f"{slot.name}/" for slot in plan.store.slots)]
    found: list[list[str]] = [[] for _ in plan.groups]
    for parameter in plan.parameters:
        tensor = parameter.part.tensor if parameter.part else parameter.name
        names = (f"{prefix}{tensor}" for prefix in prefixes)
        found[group_of[parameter.layer]] += [name for name in names if name in state]
    return found
