"""csrun completion: what a shell needs to complete csrun's commands and their options."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
COMMANDS = ("cs", "cs_input_analyzer", "csctl", "csrun", "csrun_cpu", "csrun_wse")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> int:
    """Print the completion script of a shell, for all of csrun's commands.

    For bash: eval "$(csrun completion bash)" in ~/.bashrc.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    for name in COMMANDS:
        # the variable is the one that click looks for in the command itself
        click.echo(kind(click.Command(name), {}, name, f"_{name.upper()}_COMPLETE").source())
    return 0
