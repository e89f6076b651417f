"""Shell completion: the scripts that `csrun completion` prints, and the ids of jobs."""

import click
from click.shell_completion import CompletionItem, get_completion_class

from csrun.base.choice import Choice
from csrun.base.errors import CsrunError
from csrun.base.safe_text import printable

SHELLS = ("bash", "zsh", "fish")
COMMANDS = ("cs", "cs_input_analyzer", "csctl", "csrun", "csrun_cpu", "csrun_wse")


@click.command("completion")
@click.argument("shell", metavar="SHELL", type=Choice(SHELLS))
def completion(shell: str) -> int:
    """Print the completion script of a shell (bash, zsh or fish) for all csrun commands.

    For bash: eval "$(csrun completion bash)" in ~/.bashrc.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    for name in COMMANDS:
        # click looks for this variable in the command itself
        click.echo(kind(click.Command(name), {}, name, f"_{name.upper()}_COMPLETE").source())
    return 0


def job_ids(
    context: click.Context, parameter: click.Parameter | None, incomplete: str
) -> list[CompletionItem]:
    """Return the jobs of `--site` whose number begins with `incomplete`.

    Empty if the site cannot be queried. zsh and fish also show the job's name and state.
    """
    from csrun.launch import backend_of
    from csrun.site import load

    try:
        jobs = backend_of(load(context.find_root().params.get("site"))).jobs()
    except CsrunError:
        return []
    return [
        CompletionItem(str(job.job_id), help=f"{printable(job.name)} {job.state}")
        for job in jobs
        if str(job.job_id).startswith(incomplete)
    ]
