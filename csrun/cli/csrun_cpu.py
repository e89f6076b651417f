"""csrun_cpu: runs one command on a CPU node of a site, on this terminal."""

import shlex
from typing import TYPE_CHECKING, Any

import click

from csrun.base.choice import Choice
from csrun.cli import frame
from csrun.context import export_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from csrun.site import Site

NAME = "csrun_cpu"
QUERIED = f"{__name__}.queried"
QUERIES: "dict[str, Callable[[Site], object]]" = {
    "def-nodes": lambda site: site.defaults.nodes,
    "def-tasks": lambda site: site.defaults.tasks_per_node,
    "def-cpus": lambda site: site.defaults.cpus_per_task,
    "def-mount-dirs": lambda site: ",".join(site.mount_dirs),
    "def-gres": lambda site: site.gres or "",
    "def-gres-node": lambda site: site.gres_node or "",
}
HELP = {
    "def-nodes": "Print the default number of nodes of a job, and exit.",
    "def-tasks": "Print the default number of tasks per node, and exit.",
    "def-cpus": "Print the default number of CPUs per task, and exit.",
    "def-mount-dirs": "Print the folders that are mounted for every task, and exit.",
    "def-gres": "Print the gres of a CS system, and exit.",
    "def-gres-node": "Print the node of that gres, and exit.",
}


def _queries(command: "Callable[..., int]") -> "Callable[..., int]":
    for query in reversed(QUERIES):
        command = click.option(
            f"--{query}",
            is_flag=True,
            expose_value=False,
            callback=_note_query,
            help=HELP[query],
        )(command)
    return command


def _note_query(context: click.Context, option: click.Parameter, is_asked: bool) -> None:
    """Record the requested queries in the order of the command line."""
    if is_asked:
        assert option.name is not None
        context.meta.setdefault(QUERIED, []).append(option.name.replace("_", "-"))


@click.command(NAME, context_settings=frame.SETTINGS)
@frame.version
@click.option(
    "--alloc-node",
    type=Choice(["True", "False"], case_sensitive=False),
    metavar="True|False",
    default="True",
    show_default=True,
    help="Allocate a node; with False, CMD runs immediately.",
)
@frame.job_options
@click.option("--mount-dirs", metavar="A,B", default="", help="Folders that CMD needs to see.")
@frame.the_site
@_queries
@click.pass_context
@frame.the_command
def csrun_cpu(
    context: click.Context,
    /,
    command: tuple[str, ...],
    site: str | None,
    mount_dirs: str,
    alloc_node: str,
    **job: Any,
) -> int:
    """Run CMD, a shell for example, in csrun's software environment."""
    from csrun.launch.cpu_command import CpuRequest, prepare
    from csrun.site import load, resolve

    if queries := context.meta.get(QUERIED):
        asked = load(site)
        for query in queries:
            click.echo(QUERIES[query](asked))
        return 0
    folders, options = frame.split(mount_dirs), frame.job_options_of(**job)
    request = CpuRequest(command, alloc_node == "True", folders, resolve(site), options)
    ready = prepare(request, load(site))
    if ready.unset:
        click.echo(f"{NAME}: unset for CMD: {', '.join(ready.unset)}", err=True)
    click.echo(f"Running: {shlex.join(command)}")
    return ready.run()


def main() -> None:
    export_command("csrun.cli.csrun_cpu")
    frame.main(csrun_cpu)


if __name__ == "__main__":
    main()
