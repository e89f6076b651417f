"""Number of threads that a task computes with."""

import os

from csrun.executable.plan import Plan

#: FLOPs of a minibatch from which a second thread pays. Below, the products are so short that the
#: threads wait for each other, and take CPUs from the streamers while they do.
LEAST_FLOPS = 1e9


def own_threads() -> int:
    """Thread count: the CPUs of this task."""
    return len(os.sched_getaffinity(0))


def threads_of(plan: Plan, most: int | None = None) -> int:
    """Threads of a plan's products: 1 for a small step, otherwise the CPUs of this process.

    Systems of one step divide the CPUs. Another number of threads sums in another order, so the
    last bits of a result depend on it.

    most: the limit that the user has set (`runconfig.threads`)
    """
    if sum(layer.forward_flops + layer.backward_flops for layer in plan.layers) < LEAST_FLOPS:
        return 1
    cpus = max(1, own_threads() // plan.systems)
    return cpus if most is None else min(most, cpus)
