"""Number of threads that a task computes with."""

import os

from csrun.executable.plan import Plan

#: FLOPs of a minibatch from which a second thread pays. Below, kernels are so short that threads
#: wait for each other, and take CPUs from the streamers while they do.
LEAST_FLOPS = 1e9


def own_threads() -> int:
    """Thread count: the CPUs of this task."""
    return len(os.sched_getaffinity(0))


def threads_of(plan: Plan, most: int | None = None) -> int:
    """Threads of a plan's kernels: 1 for a small step, otherwise the CPUs of this process.

    Systems of one step divide the CPUs. BLAS sums in another order with another number of threads,
    so the last bits of its products depend on it; those of machine code do not.

    most: the limit that the user has set (`runconfig.threads`)
    """
    if sum(layer.forward_flops + layer.backward_flops for layer in plan.layers) < LEAST_FLOPS:
        return 1
    cpus = max(1, own_threads() // plan.systems)
    return cpus if most is None else min(most, cpus)
