"""csrun: what a run has left, looked at and converted."""

import click

from csrun.cli import frame
from csrun.cli.checkpoint import checkpoint

NAME = "csrun"


@click.group(NAME, context_settings=frame.SETTINGS)
def csrun() -> None:
    """Look at what a run has left; csrun_wse and csrun_cpu are what runs."""


csrun.add_command(checkpoint)


def main() -> None:
    frame.main(csrun)


if __name__ == "__main__":
    main()
