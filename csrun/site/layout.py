"""Layout of a job's tasks on its nodes: N nodes, S of them with one task, the others with T each.

Defines the formula tasks = S + (N - S) x T and its inverses.
"""

from dataclasses import dataclass


def streaming_single_task_nodes(servers: int = 1, swarmx: int = 0) -> int:
    """Minimum S of weight streaming: one node for the chief and for each MemoryX and SwarmX
    task.
    """
    return 1 + servers + swarmx


@dataclass(frozen=True)
class JobLayout:
    """Layout of a job, with the numbers of csrun_wse: N nodes, T tasks, C CPUs per task, S.

    cyclic: deal tasks to the multi-task nodes in turn; otherwise one node is filled after the
        other.
    """

    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    single_task_nodes: int
    cyclic: bool = False

    @property
    def tasks(self) -> int:
        """S + (N - S) x T."""
        return sum(self.tasks_by_node)

    @property
    def tasks_by_node(self) -> tuple[int, ...]:
        """Tasks of each node, in the order of node ids."""
        single = self.single_task_nodes
        return (1,) * single + (self.tasks_per_node,) * (self.nodes - single)

    @property
    def node_ids(self) -> tuple[int, ...]:
        """Return the node of each rank, as srun places the components.

        Without single-task nodes the first node is a separate component and is filled first; only
        nodes of the last component are dealt to in turn when `cyclic`.
        """
        first = max(1, self.single_task_nodes)
        ids = [node for node in range(first) for _ in range(self.tasks_by_node[node])]
        rest = range(first, self.nodes)
        if self.cyclic:
            ids += [node for _ in range(self.tasks_per_node) for node in rest]
        else:
            ids += [node for node in rest for _ in range(self.tasks_per_node)]
        return tuple(ids)

    def tasks_per_node_for(self, tasks: int) -> int:
        """Return the minimum T with which these nodes have this many tasks."""
        return _ceil(tasks - self.single_task_nodes, self.nodes - self.single_task_nodes)

    def nodes_for(self, tasks: int, tasks_per_node: int) -> int:
        """Return the minimum N that has this many tasks, with T on each multi-task node."""
        return self.single_task_nodes + _ceil(tasks - self.single_task_nodes, tasks_per_node)


def _ceil(count: int, parts: int) -> int:
    return -(-count // parts)
