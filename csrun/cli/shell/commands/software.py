"""software show: what is installed."""

import platform

from csrun.base.version import VERSION
from csrun.cli.shell import reply
from csrun.cli.shell.shell import Shell, leaf

COMPUTES_WITH = ("numpy", "xdsl")


@leaf("show")
def show(shell: Shell, output_format: str) -> None:
    """Show the versions of csrun and of what it computes and compiles with."""
    from importlib import metadata  # slow to import, and used in no other command

    versions = {"csrun": VERSION, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in COMPUTES_WITH}
    rows = [{"software": name, "version": version} for name, version in versions.items()]
    reply.show(rows, output_format)
