"""Mapping between the names of a PyTorch model's parameters and buffers and those in a store.

The tensors of a training script keep PyTorch's layout, a Linear's weight as [out, in]; only the
names change to csrun's form: h.0.ln_1.weight is h/0/ln_1/weight. A PyTorch name may contain any
character but a dot, for instance in a ModuleDict's keys: a slash in it is stored as %2F, and % as
%25.
"""

from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

ROOT_LAYER = "model"  # layer name of parameters of the model itself
PROGRAM, IN_ROOT, TIED = "program", "in_root", "tied"  # key of a checkpoint's identity
TORCH = "torch"


def stored_name(name: str) -> str:
    """Return the store's name of a parameter or buffer: h/0/ln_1/weight for h.0.ln_1.weight."""
    quoted = name.replace("%", "%25").replace("/", "%2F")
    return quoted.replace(".", "/") if "." in name else f"{ROOT_LAYER}/{quoted}"


def are_stored_names(names: Iterable[str]) -> bool:
    """True for weights of a csrun.nn model, all of which are `layer/weight`, such as
    h/0/ln_1/gamma.

    A PyTorch name may contain a slash, too, in a ModuleDict's key: layers.a/b.weight.
    """
    return all("/" in name and "." not in name.rpartition("/")[2] for name in names)


def same_stored_name(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names with the same stored name, such as `weight` and `model.weight`, if there are
    any.
    """
    found: dict[str, str] = {}
    for name in names:
        other = found.setdefault(stored_name(name), name)
        if other != name:
            return other, name
    return None


def torch_identity(names: Iterable[str], tied: Mapping[str, str]) -> dict[str, str]:
    """Return the identity of a PyTorch model, for its checkpoints.

    names: of its parameters and buffers, each once.
    tied: further names of its state_dict, mapped to the name of the same tensor.
    """
    in_root = " ".join(quote(name) for name in names if "." not in name)
    pairs = " ".join(f"{quote(name)}={quote(other)}" for name, other in tied.items())
    return {PROGRAM: TORCH} | {k: v for k, v in ((IN_ROOT, in_root), (TIED, pairs)) if v}


def state_dict_names(stored: Iterable[str], identity: Mapping[str, str]) -> dict[str, str]:
    """Return the state_dict names of stored tensors, including tied ones.

    A checkpoint of a model that is not PyTorch's keeps its own names.
    """
    if identity.get(PROGRAM) != TORCH:
        return {name: name for name in stored}
    in_root = {stored_name(name): name for name in map(unquote, identity.get(IN_ROOT, "").split())}
    found = {in_root.get(name, unquote(name.replace("/", "."))): name for name in stored}
    pairs = (pair.split("=", 1) for pair in identity.get(TIED, "").split())
    tied = {unquote(name): unquote(other) for name, other in pairs}
    return found | {name: found[other] for name, other in tied.items() if other in found}
