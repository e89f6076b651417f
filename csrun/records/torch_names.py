"""Names of a PyTorch model's parameters and buffers in a store, and back.

A training script's are kept in PyTorch's own layout, a Linear's weight as [out, in]; only the names
are others, as those of layers are: h.0.ln_1.weight is h/0/ln_1/weight. A name may have any sign but
a dot, as a ModuleDict's keys do: a slash in it is %2F, and % is %25.
"""

from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

ROOT_LAYER = "model"  # of what lies in the model itself, in none of its modules
PROGRAM, IN_ROOT, TIED = "program", "in_root", "tied"  # of a checkpoint's identity
TORCH = "torch"


def stored_name(name: str) -> str:
    """The store's name of a parameter or buffer: h.0.ln_1.weight as h/0/ln_1/weight."""
    quoted = name.replace("%", "%25").replace("/", "%2F")
    return quoted.replace(".", "/") if "." in name else f"{ROOT_LAYER}/{quoted}"


def are_stored_names(names: Iterable[str]) -> bool:
    """True for the weights of a native model, all of which are `layer/weight`, as h/0/ln_1/gamma.

    A PyTorch name may have a slash, too, in a ModuleDict's key: layers.a/b.weight.
    """
    return all("/" in name and "." not in name.rpartition("/")[2] for name in names)


def same_stored_name(names: Iterable[str]) -> tuple[str, str] | None:
    """Two names that the store cannot tell apart, as `weight` and `model.weight`, if there are."""
    found: dict[str, str] = {}
    for name in names:
        other = found.setdefault(stored_name(name), name)
        if other != name:
            return other, name
    return None


def torch_identity(names: Iterable[str], tied: Mapping[str, str]) -> dict[str, str]:
    """Return the identity of a PyTorch model, for its checkpoints.

    names: of its parameters and buffers, each once. tied: further names of its state_dict, and
    which of the others each is.
    """
    in_root = " ".join(quote(name) for name in names if "." not in name)
    pairs = " ".join(f"{quote(name)}={quote(other)}" for name, other in tied.items())
    return {PROGRAM: TORCH} | {k: v for k, v in ((IN_ROOT, in_root), (TIED, pairs)) if v}


def state_dict_names(stored: Iterable[str], identity: Mapping[str, str]) -> dict[str, str]:
    """The names that a state_dict has for what is stored, tied ones among them.

    A checkpoint of a model that is not PyTorch's has its own names there.
    """
    if identity.get(PROGRAM) != TORCH:
        return {name: name for name in stored}
    in_root = {stored_name(name): name for name in map(unquote, identity.get(IN_ROOT, "").split())}
    found = {in_root.get(name, unquote(name.replace("/", "."))): name for name in stored}
    pairs = (pair.split("=", 1) for pair in identity.get(TIED, "").split())
    tied = {unquote(name): unquote(other) for name, other in pairs}
    return found | {name: found[other] for name, other in tied.items() if other in found}
