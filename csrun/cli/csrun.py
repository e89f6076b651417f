"""csrun: inspects and converts the files of a run."""

import click

from csrun.cli import frame
from csrun.cli.checkpoint import checkpoint
from csrun.cli.completion import completion
from csrun.cli.dashboard import dashboard
from csrun.cli.doctor import doctor
from csrun.cli.estimate_run import estimate
from csrun.cli.init import init
from csrun.cli.params import params
from csrun.cli.run_compare import compare
from csrun.cli.site_admin import site
from csrun.cli.top import top

NAME = "csrun"


@click.group(NAME, cls=frame.CommandGroup, context_settings=frame.SETTINGS)
@frame.version
def csrun() -> None:
    """Create a project, inspect the results of a run. Start runs with csrun_wse or csrun_cpu."""


csrun.add_command(checkpoint)
csrun.add_command(compare)
csrun.add_command(completion)
csrun.add_command(dashboard)
csrun.add_command(doctor)
csrun.add_command(estimate)
csrun.add_command(init)
csrun.add_command(params)
csrun.add_command(site)
csrun.add_command(top)


def main() -> None:
    frame.main(csrun)


if __name__ == "__main__":
    main()
