"""A job's plan on the terminal."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from csrun.launch.preview import DryRun, Sharing


def show(plan: "DryRun") -> None:
    """Print the tasks as a table, then the srun line and what the machine shares."""
    table = Table("rank", "role", "node", "cpus")
    table.columns[0].justify = "right"
    for task in plan.tasks:
        table.add_row(str(task.rank), task.role, task.node, ranges(task.cpus))
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print("Nodes: as on an idle site; a job gets the first ones that are free")
    console.print(f"On a cluster: {plan.srun}", soft_wrap=True)
    for line in _sharing(len(plan.tasks), plan.sharing) if plan.sharing else ():
        console.print(line, soft_wrap=True)


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers in short: 0-3,8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def _sharing(tasks: int, sharing: "Sharing") -> list[str]:
    lines = [
        f"CPUs: {tasks} tasks ask for {sharing.nominal_cpus} and share {sharing.real_cpus} real "
        f"ones, at most {sharing.tasks_per_cpu} tasks on one"
    ]
    if sharing.memory_mb is not None:
        lines.append(
            f"Memory: about {sharing.memory_mb:,} MiB before the model and its data, of "
            f"{sharing.memory_available_mb:,} MiB available"
        )
    return lines
