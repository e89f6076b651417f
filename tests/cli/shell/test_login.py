"""Login to the admin shell through sshd: permissions of keys, and what no key may do."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs import until
from support.sshd import SSHD, SshServer, ssh_server
from support.terminals import terminal

from csrun.base.mode import ExecutionMode
from csrun.site import load
from csrun.system import Power, acquire, load_state

ROLES = {
    "admin": 'restrict,pty,environment="CSRUN_ROLE=admin"',
    "user": 'restrict,pty,environment="CSRUN_ROLE=user"',
    "plain": "",  # a line without a role, and without restrictions of its own
    "odd": 'environment="CSRUN_ROLE=root"',
    "greedy": 'environment="LD_PRELOAD=/tmp/x.so",environment="CSRUN_ROLE=user"',
}
SITE = load("local")
pytestmark = pytest.mark.skipif(SSHD is None, reason="needs OpenSSH's sshd")


@pytest.fixture
def server(tmp_path: Path, state: str) -> Iterator[SshServer]:
    folder = tmp_path / "ssh"
    folder.mkdir()
    with ssh_server(folder, ROLES, state) as running:
        yield running


def power() -> Power:
    return load_state(SITE, SITE.systems[0]).power


def test_an_admins_one_shot_commands(server: SshServer) -> None:
    done = server.ssh("admin", "config", "execmode", "show", "--output-format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"configured_execution_mode": "PIPELINED"}
    assert server.ssh("admin", "cs system standby --yes").returncode == 0
    assert power() is Power.STANDBY
    done = server.ssh("admin", "system", "standby", "--yes")
    assert done.returncode == 2
    assert "not possible while the system is STANDBY" in done.stderr


def test_an_admins_lines(server: SshServer) -> None:
    lines = "system standby\nyes\nconfig execmode setup --mode WEIGHT_STREAMING\nsystem activate\n"
    done = server.ssh("admin", text=lines)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "cs2-01 is ACTIVE in WEIGHT_STREAMING mode"


def test_a_drain_whose_client_is_gone_is_given_up(server: SshServer) -> None:
    def drained_by() -> object:
        return json.loads(server.ssh("user", "system status --output-format json").stdout)[
            "drained_by"
        ]

    command = ["ssh", *server.options("admin"), server.target, "system standby --yes --force"]
    with acquire(SITE, SITE.systems[0], ExecutionMode.PIPELINED, "job 7"):
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as client:
            until(lambda: drained_by() is not None)
            client.kill()
        until(lambda: drained_by() is None)
    assert power() is Power.ACTIVE


def test_an_admins_prompt(server: SshServer) -> None:
    command = ("ssh", *server.options("admin"), "-t", server.target)
    with terminal(*command, environment={**os.environ, "TERM": "xterm"}) as opened:
        opened.wait_for("cs>")
        opened.type("config execmode show\r")
        opened.wait_for("Configured Execution Mode : PIPELINED")
        opened.type("exit\r")
        assert opened.exit_code() == 0


@pytest.mark.parametrize(
    "key", ["greedy", *(pytest.param(k, marks=pytest.mark.slow) for k in ("user", "plain"))]
)
def test_a_key_without_rights_looks_and_changes_nothing(server: SshServer, key: str) -> None:
    assert server.ssh(key, "config execmode show").stdout.endswith(" : PIPELINED\n")
    for command in ("system standby --yes", "--ssh-login system standby --yes"):
        assert server.ssh(key, command).returncode != 0
    done = server.ssh(key, text="system standby --yes\n")
    assert done.returncode == 1
    assert (
        "'system standby' changes cs2-01, and this log-in is read-only (role user)" in done.stderr
    )
    done = server.ssh(key, "system reboot --yes", options=("-oSetEnv=CSRUN_ROLE=admin",))
    assert done.returncode == 1
    assert power() is Power.ACTIVE


def test_a_key_that_is_not_listed_or_of_no_known_role_gets_nothing(server: SshServer) -> None:
    done = server.ssh("stranger", "config execmode show")
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr
    done = server.ssh("odd", "config execmode show")
    assert done.returncode == 2
    assert "CSRUN_ROLE of this key must be one of admin, user, got 'root'" in done.stderr


OTHERS = [
    ("/bin/sh", "No such command '/bin/sh'"),
    ("sh -c id", "No such command 'sh'"),
    ("config execmode show; touch {evil}", "No such command 'show;'"),
    ("config execmode show && touch {evil}", "unexpected extra argument"),
    ("$(touch {evil})", "No such command '$"),
    ("`touch {evil}`", "No such command '`"),
    ("config execmode show | tee {evil}", "unexpected extra argument"),
    ("config execmode show > {evil}", "unexpected extra argument"),
    ("help\ntouch {evil}", "No such command 'touch'"),
    ("--site {evil} config execmode show", "No such option '--site'"),
    ("scp -t {evil}", "No such command 'scp'"),
    ("'", "no closing quotation"),
]


def test_no_way_to_another_command(server: SshServer, tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    for command, message in OTHERS:
        done = server.ssh("plain", command.format(evil=evil))
        assert done.returncode == 2, command
        assert message in done.stderr, command
        assert not evil.exists(), command
    done = server.ssh("plain", text=f"!touch {evil}\n/bin/sh\ntouch {evil}\n")
    assert done.returncode == 2
    assert not evil.exists()


def test_no_files_and_no_forwarding(server: SshServer, tmp_path: Path) -> None:
    options = server.options("plain")
    got = tmp_path / "got"
    copies = [
        ["sftp", *options, "-b", "-", server.target],
        ["scp", *options, f"{server.target}:/etc/hostname", str(got)],
        ["scp", "-O", *options, f"{server.target}:/etc/hostname", str(got)],
    ]
    for copy in copies:
        assert server.run(copy, f"get /etc/hostname {got}\n").returncode != 0
    assert not got.exists()
    done = server.ssh("plain", options=("-W", f"127.0.0.1:{server.port}"))
    assert done.returncode != 0
    assert "SSH-2.0" not in done.stdout
    back = ("-oExitOnForwardFailure=yes", "-R", "0:127.0.0.1:22")
    done = server.ssh("plain", "config execmode show", options=back)
    assert done.returncode == 255
    assert "forwarding failed" in done.stderr
