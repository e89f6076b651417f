"""The options of csrun_wse by which the next run has another number of streamers."""

from collections import Counter
from dataclasses import dataclass, replace

from csrun.context import Role
from csrun.context.job import JobFile
from csrun.site import JobLayout, Nodes


@dataclass(frozen=True)
class LayoutAdvice:
    """A job's layout, and what another one could be.

    room: tasks that a node has room for. others: the tasks that do not stream. site_nodes: how many
    nodes the site has.
    """

    layout: JobLayout
    room: int
    others: int
    site_nodes: int

    @staticmethod
    def of(job: JobFile, nodes: Nodes) -> "LayoutAdvice":
        """The numbers of a job on a site's nodes."""
        per_node = Counter(task.node_id for task in job.tasks)
        others = sum(task.role is not Role.STREAMER for task in job.tasks)
        most = max(per_node.values())
        if most > 1:
            single = sum(tasks == 1 for tasks in per_node.values())
        else:
            single = others if others > 1 else 0  # the chief's and MemoryX's, in weight streaming
        room = max(1, nodes.cpus // job.cpus_per_task)
        layout = JobLayout(job.nodes, most, job.cpus_per_task, single)
        return LayoutAdvice(layout, room, others, nodes.count)

    def options_for(self, streamers: int) -> str:
        """So many streamers at least: more tasks a node while its CPUs suffice, then more nodes."""
        tasks = streamers + self.others
        per_node = self.layout.tasks_per_node_for(tasks)
        if per_node <= self.room:
            return f"--tasks-per-node {per_node}"
        nodes = self.layout.nodes_for(tasks, self.room)
        if nodes > self.site_nodes:
            return f"the site's {self.site_nodes} nodes have no room for them: make it quicker"
        return f"--total-nodes {nodes} --tasks-per-node {self.room}"

    def options_for_exactly(self, streamers: int) -> str:
        """So many streamers, on as many nodes as now if they can be spread evenly over these."""
        tasks, single = streamers + self.others, self.layout.single_task_nodes
        for nodes in (self.layout.nodes, *range(single + 1, tasks + 1)):
            per_node = replace(self.layout, nodes=nodes).tasks_per_node_for(tasks)
            found = replace(self.layout, nodes=nodes, tasks_per_node=per_node)
            if found.tasks == tasks and per_node <= self.room:
                return f"--total-nodes {nodes} --tasks-per-node {per_node}"
        return f"--total-nodes {single + 1} --tasks-per-node {tasks - single}"
