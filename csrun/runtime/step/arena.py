"""Where the two blocks of a plan lie: the store inside the arena, or beside it."""

from csrun.executable import Plan
from csrun.executable.bind import Bytes


def store_of(plan: Plan, arena: Bytes, store: Bytes | None) -> Bytes:
    """The store's bytes: the arena's front when the plan says so, else the given block.

    Shapes: arena uint8[plan.arena_bytes] -> uint8[plan.store.nbytes]
    """
    if plan.store_in_arena:
        return arena[: plan.store.nbytes]
    if store is None:
        raise ValueError("a plan without the store in its arena needs a store")
    return store
