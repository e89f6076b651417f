"""What a PyTorch model's parameters and buffers are called in a store, and back.

A training script's are kept in PyTorch's own layout, a Linear's weight as [out, in]; only the names
are others, as those of layers are: h.0.ln_1.weight is h/0/ln_1/weight.
"""

from collections.abc import Iterable, Mapping

ROOT_LAYER = "model"  # of what lies in the model itself, in none of its modules
PROGRAM, IN_ROOT, TIED = "program", "in_root", "tied"  # of a checkpoint's identity
TORCH = "torch"


def stored_name(name: str) -> str:
    """The store's name of a parameter or buffer: h.0.ln_1.weight as h/0/ln_1/weight."""
    return name.replace(".", "/") if "." in name else f"{ROOT_LAYER}/{name}"


def same_stored_name(names: Iterable[str]) -> tuple[str, str] | None:
    """Two names that the store cannot tell apart, as `weight` and `model.weight`, if there are."""
    found: dict[str, str] = {}
    for name in names:
        other = found.setdefault(stored_name(name), name)
        if other != name:
            return other, name
    return None


def torch_identity(names: Iterable[str], tied: Mapping[str, str]) -> dict[str, str]:
    """What a checkpoint says of the PyTorch model whose it is.

    names: of its parameters and buffers, each once. tied: further names of its state_dict, and
    which of the others each is.
    """
    in_root = " ".join(name for name in names if "." not in name)
    pairs = " ".join(f"{name}={other}" for name, other in tied.items())
    return {PROGRAM: TORCH} | {k: v for k, v in ((IN_ROOT, in_root), (TIED, pairs)) if v}


def state_dict_names(stored: Iterable[str], identity: Mapping[str, str]) -> dict[str, str]:
    """The names that a state_dict has for what is stored, tied ones among them.

    A checkpoint of a model that is not PyTorch's has its own names there.
    """
    if identity.get(PROGRAM) != TORCH:
        return {name: name for name in stored}
    in_root = {stored_name(name): name for name in identity.get(IN_ROOT, "").split()}
    found = {in_root.get(name, name.replace("/", ".")): name for name in stored}
    tied = dict(pair.split("=", 1) for pair in identity.get(TIED, "").split())
    return found | {name: found[other] for name, other in tied.items() if other in found}
