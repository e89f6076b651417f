"""OpenSSH's sshd as the documentation sets it up, on loopback, for the user who runs the tests."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from support.jobs import until

CONFIG = Path(__file__).parents[2] / "docs" / "cs-login.sshd_config"
SEARCH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
SSHD = shutil.which("sshd", path=SEARCH)
SEPARATED = Path("/run/sshd")  # where a root's sshd locks its unprivileged half in


@dataclass(frozen=True)
class SshServer:
    """A running sshd, and the folder with the clients' keys in it."""

    folder: Path
    port: int

    @property
    def target(self) -> str:
        return f"{getpass.getuser()}@127.0.0.1"

    def options(self, key: str) -> list[str]:
        """What ssh, sftp and scp alike take to come with a key, and with nothing of the user's."""
        options = {
            "Port": self.port,
            "IdentityFile": self.folder / key,
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
        }
        return ["-F", "none", *(f"-o{name}={value}" for name, value in options.items())]

    def ssh(
        self, key: str, *command: str, text: str = "", options: tuple[str, ...] = ()
    ) -> "subprocess.CompletedProcess[str]":
        """Log in with a key, for a command or with lines of text."""
        words = ["--", *command] if command else []
        return self.run(["ssh", *self.options(key), *options, self.target, *words], text)

    def run(self, argv: list[str], text: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=120)


@contextmanager
def ssh_server(folder: Path, roles: dict[str, str], state: str) -> Iterator[SshServer]:
    """The documented sshd with a key for each name in `roles`, whose lines begin as told."""
    lines = []
    for name, prefix in roles.items():
        lines.append(f"{prefix} {_new_key(folder / name)}\n".lstrip())
    for name in ("host", "stranger"):
        _new_key(folder / name)
    (folder / "authorized_keys").write_text("".join(lines))
    server = SshServer(folder, _free_port())
    with _separated(), subprocess.Popen(_command(server, state), stderr=subprocess.PIPE) as sshd:
        try:
            until(lambda: _listens(server.port) or sshd.poll() is not None)
            assert sshd.poll() is None, sshd.stderr and sshd.stderr.read()
            yield server
        finally:
            sshd.terminate()


def _command(server: SshServer, state: str) -> list[str]:
    """The documented file, but for paths, port and account."""
    changes = {
        "Port": str(server.port),
        "ListenAddress": "127.0.0.1",
        "HostKey": str(server.folder / "host"),
        "AllowUsers": getpass.getuser(),
        "AuthorizedKeysFile": str(server.folder / "authorized_keys"),
        "ForceCommand": f"{sys.executable} -m csrun.cli.cs --ssh-login",
        "SetEnv": f"CSRUN_STATE_DIR={state} LANG=C.UTF-8",
        "PermitRootLogin": "yes" if os.geteuid() == 0 else "no",
        "StrictModes": "no",  # a test's folder lies below /tmp, which everybody may write
        "PidFile": "none",
    }
    options = [f"-o{name}={value}" for name, value in changes.items()]
    return [str(SSHD), "-D", "-e", "-f", str(CONFIG), *options]


def _new_key(path: Path) -> str:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)],
        check=True,
    )
    return path.with_suffix(".pub").read_text().strip()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _separated() -> Iterator[None]:
    is_ours = os.geteuid() == 0 and not SEPARATED.exists()
    if is_ours:
        SEPARATED.mkdir(mode=0o755)
    try:
        yield
    finally:
        if is_ours:
            with suppress(OSError):
                SEPARATED.rmdir()
