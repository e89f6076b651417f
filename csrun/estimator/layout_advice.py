"""Options of csrun_wse for another number of streamers."""

from collections import Counter
from dataclasses import dataclass, replace

from csrun.context import Role
from csrun.context.job import JobFile
from csrun.site import JobLayout, Nodes


@dataclass(frozen=True)
class LayoutAdvice:
    """Layout of a job, and the limits of another one.

    room: tasks that fit on a node. others: tasks that do not stream. site_nodes: nodes of the site.
    """

    layout: JobLayout
    room: int
    others: int
    site_nodes: int

    @staticmethod
    def of(job: JobFile, nodes: Nodes) -> "LayoutAdvice":
        """Return the advice for a job on a site's nodes."""
        per_node = Counter(task.node_id for task in job.tasks)
        others = sum(task.role is not Role.STREAMER for task in job.tasks)
        most = max(per_node.values())
        if most > 1:
            single = sum(tasks == 1 for tasks in per_node.values())
        else:
            # In weight streaming the chief and MemoryX are each alone on a node.
            single = others if others > 1 else 0
        room = max(1, nodes.cpus // job.cpus_per_task)
        layout = JobLayout(job.nodes, most, job.cpus_per_task, single)
        return LayoutAdvice(layout, room, others, nodes.count)

    def options_for(self, streamers: int) -> str:
        """Return the options for at least this many streamers: more tasks per node, then nodes."""
        tasks = streamers + self.others
        per_node = self.layout.tasks_per_node_for(tasks)
        if per_node <= self.room:
            return f"--tasks-per-node {per_node}"
        nodes = self.layout.nodes_for(tasks, self.room)
        if nodes > self.site_nodes:
            return f"the site has only {self.site_nodes} nodes: speed up input_fn"
        return f"--total-nodes {nodes} --tasks-per-node {self.room}"

    def options_for_exactly(self, streamers: int) -> str:
        """Return the options for exactly this many streamers, on the same nodes if possible."""
        tasks, single = streamers + self.others, self.layout.single_task_nodes
        for nodes in (self.layout.nodes, *range(single + 1, tasks + 1)):
            per_node = replace(self.layout, nodes=nodes).tasks_per_node_for(tasks)
            found = replace(self.layout, nodes=nodes, tasks_per_node=per_node)
            if found.tasks == tasks and per_node <= self.room:
                return f"--total-nodes {nodes} --tasks-per-node {per_node}"
        return f"--total-nodes {single + 1} --tasks-per-node {tasks - single}"
