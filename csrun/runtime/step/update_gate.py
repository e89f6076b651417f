"""A checkpoint is copied while the next step runs: an update waits until what it changes is copied.

The tensors are copied in the order in which a step updates them, who copies counts them, and who
updates takes from that count. In a step the forward pass and most of the backward pass lie
before the first update, so that there is rarely anything to wait for.
"""

from collections.abc import Callable
from itertools import chain

from csrun.executable import Plan, state_layout
from csrun.executable.shards import Own
from csrun.runtime.wire.run_time_clock import awake_s


class UpdateGate:
    """The updating side, one for all programs over a store. owner: the plan that it is laid out by.

    Its tensors are numbered from 1 on, in the order of their copying; own: those of these groups.
    held_s: how long updates have waited so far, in seconds.
    """

    def __init__(self, owner: Plan, own: Own = None) -> None:
        order = copying_order(owner, own)
        self._numbers = {name: number for number, name in enumerate(order, 1)}
        self._copied = len(self._numbers)
        self._take: Callable[[], object] | None = None
        self.held_s = 0.0

    def hold(self, take: Callable[[], object]) -> int:
        """From here on nothing is copied yet; `take` waits for one more tensor of so many."""
        self._take, self._copied = take, 0
        return len(self._numbers)

    def last_of_groups(self, plan: Plan) -> list[int]:
        """For each group of a program the number of the tensor that is copied last of it."""
        numbers = ([self._numbers.get(name, 0) for name in names] for names in _tensors(plan))
        return [max(own, default=0) for own in numbers]

    def wait(self, last: int) -> None:
        """Until the tensor of this number is copied, and all before it."""
        if self._take is None or self._copied >= last:
            return
        began = awake_s()
        while self._copied < last:
            self._take()
            self._copied += 1
        self.held_s += awake_s() - began


def copying_order(plan: Plan, own: Own = None) -> tuple[str, ...]:
    """Tensors of the state by name, in the order in which a step updates them.

    own: of these groups alone
    """
    tensors, layout = _tensors(plan), state_layout(plan, own)
    first = chain.from_iterable(tensors[group] for group in plan.deliveries)
    return tuple(name for name in dict.fromkeys(chain(first, layout)) if name in layout)


def _tensors(plan: Plan) -> list[list[str]]:
    """The weights that a group has, or has a part of, and their optimizer state, by name."""
    group_of = {layer.name: layer.group for layer in plan.layers}
    state, prefixes = state_layout(plan), ["", *(f"{slot.name}/" for slot in plan.store.slots)]
    found: list[list[str]] = [[] for _ in plan.groups]
    for parameter in plan.parameters:
        tensor = parameter.part.tensor if parameter.part else parameter.name
        names = (f"{prefix}{tensor}" for prefix in prefixes)
        found[group_of[parameter.layer]] += [name for name in names if name in state]
    return found
