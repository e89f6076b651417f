"""CPUs that a task computes on."""

import os

from csrun.executable import Plan


def thread_count() -> int:
    """Return the number of CPUs of this task, as thread count."""
    return len(os.sched_getaffinity(0))


def cpus_of(plan: Plan, most: int | None = None) -> int:
    """Return the CPUs of one system of a plan; systems divide those of this process.

    most: limit set by the user (`runconfig.threads`).
    """
    cpus = max(1, thread_count() // plan.systems)
    return cpus if most is None else min(most, cpus)
