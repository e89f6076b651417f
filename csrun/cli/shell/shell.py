"""What the commands of the admin shell work with."""

from dataclasses import dataclass, replace

from csrun.base.errors import CsrunError
from csrun.cli.shell.asking import Asking
from csrun.context.login import LoginRole
from csrun.site import Site, System
from csrun.system.find import named


class LeaveShell(Exception):  # noqa: N818  an event, not an error
    """The user wants to leave the shell."""


@dataclass(frozen=True)
class Shell:
    """A site, the system that commands are for, who gives them, and how to ask them back."""

    site: Site
    system: System
    role: LoginRole
    asking: Asking

    def on(self, system: str | None) -> "Shell":
        """The same shell for another system of the site.

        Raises: UsageError for an unknown one
        """
        return self if system is None else replace(self, system=named(self.site, system))

    def require_admin(self, command: str) -> None:
        """Make sure that who is here may change a system.

        Raises: CsrunError
        """
        if self.role is not LoginRole.ADMIN:
            raise CsrunError(
                f"'{command}' changes {self.system.name}, and this log-in may only look (role "
                f"{self.role}): ask an administrator of the system"
            )
