"""Threads of a program: those of its machine code, and those of BLAS."""

from dataclasses import dataclass

from csrun.executable import machine_code
from csrun.executable.plan import Plan

#: FLOPs of a minibatch above which a second thread pays. Below, kernels are so short that threads
#: wait for each other, and BLAS threads also take CPUs from the streamers while they wait.
LEAST_FLOPS, LEAST_FLOPS_OF_BLAS = 1e8, 1e9


@dataclass(frozen=True)
class Threads:
    """Number of threads of a program's machine code, and of BLAS.

    Only BLAS sums in another order with another number of threads.
    """

    kernels: int
    blas: int


def threads_of(plan: Plan, cpus: int) -> Threads:
    """Return the threads of a program on this many CPUs: those of machine code or BLAS, whichever
    computes most of its FLOPs.
    """
    flops = sum(layer.forward_flops + layer.backward_flops for layer in plan.layers)
    if plan.machine_code_share >= 0.5 and machine_code.is_supported():
        return Threads(cpus if flops >= LEAST_FLOPS else 1, 1)
    return Threads(1, cpus if flops >= LEAST_FLOPS_OF_BLAS else 1)
