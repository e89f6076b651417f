"""Homes: which layer's PEs each kernel runs on, and what one layer sends to others.

A kernel is at home with the layer that it is named after or, where that has no weights, with the
one whose weights it uses, else with the layer before it. Backward, what uses no weights is where
its scope was forward. On the fabric of a pipeline a layer without matrices is no home, either.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from csrun.base.half_formats import WORD
from csrun.compiler.graph.graph import GRADIENT
from csrun.compiler.kernels import Kernel, Phase
from csrun.executable import Parameter, aligned, nbytes_of


def homes_of(kernels: Sequence[Kernel], layer_of: Mapping[str, str], first: str) -> list[str]:
    """The layer of each kernel, in program order.

    layer_of: the layers that may be a home, by the names of their parameters; first: that of
    kernels before any other
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
    """The layers by their parameters' names, without those whose weights are vectors.

    A norm, or a bias alone, has next to no work: PEs of its own would hold its activations and
    wait, while the slowest layer of a pipeline wants all that there are.
    """
    found = list(parameters)
    matrices = {p.layer for p in found if len(p.shape) > 1}
    return {p.name: p.layer for p in found if p.layer in matrices}


def touched(kernel: Kernel) -> tuple[list[str], list[str]]:
    """Parameters whose weights the kernel reads, and those whose gradients it writes."""
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
        floats = {a.shape: a.name for a in kernel.writes if a.dtype != WORD}
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
