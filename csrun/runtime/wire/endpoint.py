"""Where a run's chief is reached: the file `endpoint` in the run's folder."""

import secrets
import socket

import msgspec

from csrun.context import Host


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The chief's two doors. `unix` is an abstract address: no path to be too long or to remove.

    `host` and `port` are None where all tasks share one machine.
    """

    unix: str
    host: Host | None
    port: int | None

    def connect(self, host: Host | None, timeout_s: float) -> socket.socket:
        """A connection from a task on `host`: TCP when that is another machine.

        Raises: OSError
        """
        if host is None or self.host is None or host.name == self.host.name:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.settimeout(timeout_s)
            try:
                connection.connect(f"\0{self.unix}")
            except OSError:
                connection.close()
                raise
            return connection
        return socket.create_connection((self.host.address, self.port or 0), timeout_s)


def new_unix_name() -> str:
    """An abstract address that nobody has."""
    return f"csrun-{secrets.token_hex(12)}"


def bulk_name(peer: str) -> str:
    """The name by which a peer's connection for raw data joins."""
    return f"{peer}/bulk"
