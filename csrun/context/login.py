"""A log-in through sshd that forces `cs` on it: who comes, and what they ask for."""

import os
from enum import StrEnum

import msgspec

from csrun.base.errors import UsageError

ROLE = "CSRUN_ROLE"
ORIGINAL_COMMAND = "SSH_ORIGINAL_COMMAND"


class LoginRole(StrEnum):
    """What a key may do: change the systems, or look at them."""

    ADMIN = "admin"
    USER = "user"


class SshLogin(msgspec.Struct, frozen=True):
    """One connection; without a command it wants the prompt."""

    role: LoginRole
    command: str | None


def ssh_login() -> SshLogin:
    """The log-in that this process is for. A key that names no role may look only.

    Source: sshd(8), AUTHORIZED_KEYS FILE FORMAT, environment="NAME=value"; sshd_config(5),
    ForceCommand, for SSH_ORIGINAL_COMMAND

    Raises: UsageError for a role that there is not
    """
    role = os.environ.get(ROLE, LoginRole.USER)
    try:
        return SshLogin(LoginRole(role), os.environ.get(ORIGINAL_COMMAND))
    except ValueError as error:
        known = ", ".join(LoginRole)
        raise UsageError(f"{ROLE} of this key must be one of {known}, got {role!r}") from error
