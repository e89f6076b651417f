"""The options of csrun_wse by which the next run has another number of streamers.

Source: N nodes, S of a single task, T tasks on each other make S + (N - S)·T tasks
"""

from collections import Counter
from dataclasses import dataclass

from csrun.context import Role
from csrun.context.job import JobFile
from csrun.site import Nodes


@dataclass(frozen=True)
class Layout:
    """A job's numbers: nodes of one task, nodes of several, and tasks that a node has room for.

    others: the tasks that do not stream. site_nodes: how many nodes there are to be had.
    """

    single: int
    full: int
    room: int
    others: int
    site_nodes: int

    @staticmethod
    def of(job: JobFile, nodes: Nodes) -> "Layout":
        """The numbers of a job on a site's nodes."""
        per_node = Counter(task.node_id for task in job.tasks)
        others = sum(task.role is not Role.STREAMER for task in job.tasks)
        if max(per_node.values()) > 1:
            single = sum(tasks == 1 for tasks in per_node.values())
        else:
            single = others if others > 1 else 0  # the chief's and MemoryX's, in weight streaming
        room = max(1, nodes.cpus // job.cpus_per_task)
        return Layout(single, job.nodes - single, room, others, nodes.count)

    def options_for(self, streamers: int) -> str:
        """So many streamers at least: more tasks a node while its CPUs suffice, then more nodes."""
        tasks = streamers + self.others - self.single
        if _ceil(tasks, self.full) <= self.room:
            return f"--tasks-per-node {_ceil(tasks, self.full)}"
        if self.single + _ceil(tasks, self.room) > self.site_nodes:
            return f"the site's {self.site_nodes} nodes have no room for them: make it quicker"
        return self._options(_ceil(tasks, self.room), self.room)

    def options_for_exactly(self, streamers: int) -> str:
        """So many streamers, on as many nodes as now if they can be spread evenly over these."""
        tasks = streamers + self.others - self.single
        for nodes in (self.full, *range(1, tasks + 1)):
            if tasks % nodes == 0 and tasks // nodes <= self.room:
                return self._options(nodes, tasks // nodes)
        return self._options(1, tasks)

    def _options(self, full: int, tasks: int) -> str:
        return f"--total-nodes {self.single + full} --tasks-per-node {tasks}"


def _ceil(count: int, parts: int) -> int:
    return -(-count // parts)
