"""Classification of a checkpoint's tensors as optimizer state or weights.

A slot's tensor is named `slot/weight`. Weights may be named alike: `att/out/kernel` is no state of
`out/kernel`. So the names of the slots decide, and the manifest has them. A name there that ends
with a slash begins those of all tensors of an optimizer whose own update is a part of the step.
"""

from collections.abc import Collection, Iterable, Mapping

from csrun.records.checkpoints.on_disk import CONVERTED_FROM, OPTIMIZER_STATE

# All that optimizers have had before manifests named their slots.
OLD_SLOTS = ("momentum", "gradient_sum", "square_sum")


def slots_of(identity: Mapping[str, str]) -> tuple[str, ...]:
    """The names of a checkpoint's slots, from its manifest's identity."""
    named = identity.get(OPTIMIZER_STATE)
    if named is not None:
        return tuple(named.split())
    return () if CONVERTED_FROM in identity else OLD_SLOTS


def slot_tensors(names: Iterable[str], slots: Collection[str]) -> frozenset[str]:
    """The names that are optimizer state of a weight among them.

    A slot's tensor has no state of its own: with the weights `a` and `m/m/a`, `m/a` is state of
    `a`, and `m/m/a` is the weight.
    """
    weights, found = set[str](), set[str]()
    folders = tuple(slot for slot in slots if slot.endswith("/"))
    for name in sorted(names, key=len):
        slot, _, weight = name.partition("/")
        is_state = (slot in slots and weight in weights) or name.startswith(folders)
        (found if is_state else weights).add(name)
    return frozenset(found)
