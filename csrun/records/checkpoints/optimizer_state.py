"""Classification of a checkpoint's tensors as optimizer state or weights.

The tensor of a slot is named `slot/weight`. A weight may have such a name, too: `att/out/kernel` is
not state of `out/kernel`. The manifest therefore has the names of the slots. A slot name that ends
with a slash is the prefix of all tensors of an optimizer with its own update function.
"""

from collections.abc import Collection, Iterable, Mapping

from csrun.records.checkpoints.folder_files import CONVERTED_FROM, OPTIMIZER_STATE

# slots of optimizers before manifests named them
OLD_SLOTS = ("momentum", "gradient_sum", "square_sum")


def slots_of(identity: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of a checkpoint's slots, from its manifest's identity."""
    named = identity.get(OPTIMIZER_STATE)
    if named is not None:
        return tuple(named.split())
    return () if CONVERTED_FROM in identity else OLD_SLOTS


def slot_tensors(names: Iterable[str], slots: Collection[str]) -> frozenset[str]:
    """Return the tensors that are optimizer state of a weight among them.

    A slot's tensor has no state itself: with the weights `a` and `m/m/a`, `m/a` is state of `a`,
    and `m/m/a` is the weight.
    """
    weights, found = set[str](), set[str]()
    folders = tuple(slot for slot in slots if slot.endswith("/"))
    for name in sorted(names, key=len):
        slot, _, weight = name.partition("/")
        is_state = (slot in slots and weight in weights) or name.startswith(folders)
        (found if is_state else weights).add(name)
    return frozenset(found)
