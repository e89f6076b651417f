"""Shell completion: the scripts that `csrun completion` prints, and words of csrun's commands."""

from collections.abc import Sequence

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


def array_ids(
    context: click.Context, parameter: click.Parameter | None, incomplete: str
) -> list[CompletionItem]:
    """Return the arrays of `--site` whose number begins with `incomplete`."""
    from csrun.launch.array.array_file import ids_of
    from csrun.site import load

    try:
        known = ids_of(load(context.find_root().params.get("site")))
    except CsrunError:
        return []
    return [CompletionItem(str(each)) for each in known if str(each).startswith(incomplete)]


def site_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return files, and the shipped sites."""
    from csrun.site.load import shipped_sites

    return _files_or(shipped_sites(), incomplete)


def complete_command(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return files for a word of CMD; for its first word also csrun's interpreters."""
    from csrun.launch.user_command import INTERPRETERS

    is_first = not context.params.get(parameter.name or "")
    return _files_or(tuple(INTERPRETERS) if is_first else (), incomplete)


def _files_or(words: Sequence[str], incomplete: str) -> list[CompletionItem]:
    """Return an item for which the shell completes file names, which bash drops for a word."""
    found = [CompletionItem(word) for word in words if word.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file"), *found]
