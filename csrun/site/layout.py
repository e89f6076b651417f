"""Layout of a job's tasks on nodes: N nodes, the first S of a single task, T on each other.

The one place of the formula tasks = S + (N - S) x T, and of what follows from it the other way.
"""

from dataclasses import dataclass


def streaming_single_task_nodes(servers: int = 1, swarmx: int = 0) -> int:
    """The least S of weight streaming: the nodes of the chief and of MemoryX and SwarmX tasks."""
    return 1 + servers + swarmx


@dataclass(frozen=True)
class JobLayout:
    """The numbers of a job, as csrun_wse has them: N, T, C CPUs a task, S.

    Tasks are dealt to the nodes of several in turn when `cyclic`, else node after node is filled.
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
        """The node of each rank, as srun's components place them.

        Without single-task nodes the first node is a component by itself, filled first; only the
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
        """The least T by which these nodes carry so many tasks."""
        return _ceil(tasks - self.single_task_nodes, self.nodes - self.single_task_nodes)

    def nodes_for(self, tasks: int, tasks_per_node: int) -> int:
        """The least N that carries so many tasks, of T on a node of several."""
        return self.single_task_nodes + _ceil(tasks - self.single_task_nodes, tasks_per_node)


def _ceil(count: int, parts: int) -> int:
    return -(-count // parts)
