"""Assignment of kernels to layers' PEs, and the data that one layer sends to others.

A kernel belongs to the layer that it is named after or, if that has no weights, to the layer whose
weights it uses, else to the layer before it. A backward kernel without weights belongs to the layer
of its scope in the forward pass. On the fabric of a pipeline a layer without matrices gets no PEs,
either.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from csrun.base.half_formats import WORD
from csrun.compiler.kernels import Kernel, Phase
from csrun.executable import GRADIENT, Parameter, aligned, nbytes_of


def homes_of(kernels: Sequence[Kernel], layer_of: Mapping[str, str], first: str) -> list[str]:
    """Return the layer of each kernel, in program order.

    layer_of: layers that may get PEs, by the names of their parameters.
    first: layer of kernels before any other.
    """
    layers = {*layer_of.values()}
    of_scope: dict[str, str] = {}
    home, homes = first, []
    for kernel in kernels:
        used = (layer_of[name] for name in chain(*touched(kernel)) if name in layer_of)
        own = kernel.layer if kernel.layer in layers else next(used, None)
        if kernel.phase is Phase.BACKWARD:
            homes.append(own or of_scope.get(kernel.layer, home))
            continue
        home = of_scope[kernel.layer] = own or home
        homes.append(home)
    return homes


def with_matrices(parameters: Iterable[Parameter]) -> dict[str, str]:
    """Return the layers by their parameters' names, without those whose weights are vectors.

    A norm, or a lone bias, has little work: its own PEs would hold activations and idle, while the
    slowest layer of a pipeline needs as many as possible.
    """
    found = list(parameters)
    matrices = {p.layer for p in found if len(p.shape) > 1}
    return {p.name: p.layer for p in found if p.layer in matrices}


def touched(kernel: Kernel) -> tuple[list[str], list[str]]:
    """Return parameters whose weights the kernel reads, and those whose gradients it writes."""
    written = [a.name for a in kernel.writes if a.name.startswith(GRADIENT)]
    return list(kernel.parameters), [name.removeprefix(GRADIENT) for name in written]


def crossing_bytes(kernels: Sequence[Kernel], homes: Sequence[str]) -> Counter[str]:
    """For each layer, what its kernels write and those of others read, each value once.

    Of a number that a kernel writes as a 16-bit word, too, the word does not cross. Words count as
    float32, as all numbers of a layer do.
    """
    writer: dict[str, str] = {}
    nbytes: dict[str, int] = {}
    value_of: dict[str, str] = {}
    for kernel, home in zip(kernels, homes, strict=True):
        floats = {a.shape: a.name for a in kernel.writes if a.dtype == "float32"}
        for array in kernel.writes:
            writer.setdefault(array.name, home)
            is_word = array.dtype == WORD
            size = aligned(nbytes_of(array.shape, "float32" if is_word else array.dtype))
            nbytes[array.name] = max(size, nbytes.get(array.name, 0))
            value_of[array.name] = floats.get(array.shape, array.name) if is_word else array.name
    sent = {
        value_of[array.name]: writer[array.name]
        for kernel, home in zip(kernels, homes, strict=True)
        for array in kernel.reads
        if writer.get(array.name, home) != home and not array.name.startswith(GRADIENT)
    }
    found = Counter[str]()
    for name, home in sent.items():
        found[home] += nbytes[name]
    return found
