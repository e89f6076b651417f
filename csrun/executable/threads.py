"""Threads of a program: of its machine code, of BLAS, and of the replicas of its model."""

from dataclasses import dataclass, replace

from csrun.executable import machine_code
from csrun.executable.arrays import nbytes_of
from csrun.executable.bind import Runtime
from csrun.executable.plan import Plan

#: FLOPs of a minibatch above which a second thread pays, and of all replicas of a thread. Below,
#: kernels are so short that threads wait for each other, and BLAS threads also take CPUs from the
#: streamers while they wait.
LEAST_FLOPS, LEAST_FLOPS_OF_BLAS = 1e8, 1e9

#: Elements of the largest group above which further threads pay in updates.
LEAST_UPDATED = 1 << 18


@dataclass(frozen=True)
class Threads:
    """Number of threads of a program's machine code, of BLAS, and of the replicas of its model.

    Only BLAS sums in another order with another number of threads.
    """

    kernels: int
    blas: int
    replicas: int = 1

    def over(self, runtime: Runtime) -> Runtime:
        """Return the runtime arguments with these threads."""
        return replace(runtime, threads=self.kernels, replica_threads=self.replicas)


def threads_of(plan: Plan, cpus: int) -> Threads:
    """Return the threads of a program on this many CPUs: those of machine code or BLAS, whichever
    computes most of its FLOPs.

    If there are enough replicas of the model for all threads, each replica has one.
    """
    flops = sum(layer.forward_flops + layer.backward_flops for layer in plan.layers)
    is_machine_code = plan.machine_code_share >= 0.5 and machine_code.is_supported()
    kernels = cpus if is_machine_code and flops >= LEAST_FLOPS else 1
    if plan.replicas > 1:
        threads = min(cpus, plan.replicas)
        is_enough = plan.replicas >= cpus or kernels == 1
        pays = is_enough and plan.replicas * flops >= threads * LEAST_FLOPS
        return Threads(kernels, 1, threads if pays else 1)
    if is_machine_code:
        return Threads(kernels, 1)
    return Threads(1, cpus if flops >= LEAST_FLOPS_OF_BLAS else 1)


def threads_of_updates(plan: Plan, cpus: int) -> int:
    """Return the threads of machine code that updates a store: one if two can compute halves."""
    largest = max((group.nbytes for group in plan.groups), default=0)
    is_large = largest >= LEAST_UPDATED * nbytes_of((1,), plan.precision)
    is_machine_code = plan.kernels == "llvm" and machine_code.is_supported()
    return cpus if cpus > 2 and is_large and is_machine_code else 1
