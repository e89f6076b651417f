"""The options of csrun_wse by which the next run has more streamers."""

from collections import Counter

from csrun.context import Role
from csrun.context.job import JobFile


def options_for(job: JobFile, node_cpus: int, streamers: int) -> str:
    """Options that give a job so many streamers at least, the rest as it was.

    More tasks a node while its CPUs suffice, then more nodes of as many tasks.
    Source: N nodes, S of a single task, T tasks on each other make S + (N - S)·T tasks
    """
    per_node = Counter(task.node_id for task in job.tasks)
    most = max(per_node.values())
    others = sum(task.role is not Role.STREAMER for task in job.tasks)
    if most > 1:
        single = sum(tasks == 1 for tasks in per_node.values())
    else:
        single = others if others > 1 else 0  # the chief's and MemoryX's, in weight streaming
    wanted = streamers + others - single
    tasks, room = _ceil(wanted, job.nodes - single), max(1, node_cpus // job.cpus_per_task)
    if tasks <= room:
        return f"--tasks-per-node {tasks}"
    return f"--total-nodes {single + _ceil(wanted, room)} --tasks-per-node {room}"


def _ceil(count: int, parts: int) -> int:
    return -(-count // parts)
