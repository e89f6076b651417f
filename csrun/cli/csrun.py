"""csrun: what a run has left, looked at and converted."""

import click

from csrun.cli import frame
from csrun.cli.checkpoint import checkpoint
from csrun.cli.completion import completion
from csrun.cli.site_admin import site

NAME = "csrun"


@click.group(NAME, context_settings=frame.SETTINGS)
@frame.version
def csrun() -> None:
    """Look at what a run has left; csrun_wse and csrun_cpu are what runs."""


csrun.add_command(checkpoint)
csrun.add_command(completion)
csrun.add_command(site)


def main() -> None:
    frame.main(csrun)


if __name__ == "__main__":
    main()
