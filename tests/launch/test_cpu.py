"""csrun_cpu: a command with the user's terminal on its own node, and no leftovers."""

import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import psutil
import pytest
from support.jobs import STALL_S, gone, until
from support.terminals import Terminal, terminal
from support.testbed import site_file

CSRUN_CPU = (sys.executable, "-m", "csrun.cli.csrun_cpu")
AT_ONCE = (*CSRUN_CPU, "--alloc-node", "False")


@pytest.fixture
def environment(tmp_path: Path, state: str) -> dict[str, str]:
    return {**os.environ, "HOME": str(tmp_path), "PS1": "ready> ", "TERM": "dumb"}


def cpu(*arguments: str, cwd: Path, **options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*CSRUN_CPU, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, **options
    )


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -INT $$", 130)]
)
def test_the_exit_code_is_the_commands(script: str, code: int, tmp_path: Path) -> None:
    assert cpu("sh", "-c", script, cwd=tmp_path).returncode == code


@pytest.mark.usefixtures("state")
def test_the_sites_layout_is_in_the_environment(tmp_path: Path) -> None:
    script = "echo $DEF_NODES $DEF_TASKS $DEF_CPUS"
    done = cpu("--alloc-node", "False", "sh", "-c", script, cwd=tmp_path)
    assert done.stdout.splitlines()[1:] == ["4 2 16"]


@pytest.mark.usefixtures("state")
def test_input_and_quoting_pass_through(tmp_path: Path) -> None:
    done = cpu("--alloc-node", "False", "sh", "-c", 'cat; printf "[%s]" "$1"', "sh", "a  'b'",
               cwd=tmp_path, input="typed\n")  # fmt: skip
    assert done.stdout.splitlines()[1:] == ["typed", "[a  'b']"]
    assert done.stdout.startswith("Running: sh -c ")
    assert done.stderr == ""


@pytest.mark.usefixtures("state")
def test_a_node_is_reserved_as_long_as_the_command_lives(tmp_path: Path) -> None:
    site = tmp_path / "small.yaml"
    shipped = Path(__file__).parents[2] / "site_configs" / "local.yaml"
    small = shipped.read_text().replace("count: 16", "count: 1").replace("nodes: 4", "nodes: 1")
    site.write_text(small)
    waiter = [*CSRUN_CPU, "--site", str(site), "sh", "-c", "echo got it"]
    holder = [*CSRUN_CPU, "--site", str(site), "sh", "-c", "touch in; read line; echo left"]
    with subprocess.Popen(
        holder, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        until((tmp_path / "in").exists)
        at_once = cpu("--site", str(site), "--alloc-node", "False", "true", cwd=tmp_path)
        assert (at_once.returncode, at_once.stderr) == (0, "")
        with subprocess.Popen(
            waiter, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as second:
            assert second.stderr is not None
            lines = [second.stderr.readline() for _ in range(2)]
            assert "queued and waiting for resources" in lines[0]
            assert "waiting for 1 of the 1 nodes" in lines[1]
            first.communicate("go\n", timeout=STALL_S)
            assert "got it" in second.communicate(timeout=STALL_S)[0]


@pytest.mark.usefixtures("state")
def test_the_environment_is_csruns_own(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": "/other", "LD_LIBRARY_PATH": "/other/lib"}
    show = "import os, sys; print(sys.executable, *(n in os.environ for n in sys.argv[1:]))"
    done = subprocess.run(
        [*AT_ONCE, "python", "-c", show, "PYTHONPATH", "LD_LIBRARY_PATH", "HOME"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[1].split()[1:] == ["False", "False", "True"]
    assert Path(done.stdout.splitlines()[1].split()[0]).parent == Path(sys.executable).parent
    assert done.stderr == "csrun_cpu: unset for CMD: PYTHONPATH, LD_LIBRARY_PATH\n"


def test_ctrl_c_reaches_the_command_once(environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "catch.py"
    script.write_text(
        "import time\ntry:\n    print('up', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('caught', flush=True)\n"
        "time.sleep(0.3)\nprint('done', flush=True)\n"
    )
    with terminal(*AT_ONCE, "python", str(script), environment=environment) as tty:
        tty.wait_for("up")
        tty.type("\x03")
        tty.wait_for("caught")
        tty.wait_for("done")
        assert tty.exit_code() == 0


COUNT_INTERRUPTS = """import signal, time
came = []
signal.signal(signal.SIGINT, lambda *_: came.append(1))
print("up", flush=True)
end = time.monotonic() + 60
while not came and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(1)  # for a second one, which comes up to 0.2 s later
print(len(came), flush=True)
"""


@pytest.mark.parametrize("targets", ["front", "group", "front and group", "name", "command line"])
def test_an_interrupt_of_a_program_reaches_the_command_once(
    targets: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """`timeout -s INT` signals its child and then the group; pkill all processes of a name."""
    script = tmp_path / "count.py"
    script.write_text(COUNT_INTERRUPTS)
    with subprocess.Popen(
        [*AT_ONCE, "python", str(script)],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, process_group=0,
    ) as front:  # fmt: skip
        assert front.stdout is not None
        assert list(islice(front.stdout, 2))[-1] == "up\n"
        around = [psutil.Process(front.pid), *psutil.Process(front.pid).children()]
        if targets == "name":
            named = [process for process in around if process.name() == around[0].name()]
        else:
            named = [process for process in around if "csrun_cpu" in " ".join(process.cmdline())]
        assert len(around) == 2
        if targets in ("name", "command line"):
            for process in named:
                process.send_signal(signal.SIGINT)
        if targets in ("front", "front and group"):
            front.send_signal(signal.SIGINT)
        if targets in ("group", "front and group"):
            os.killpg(front.pid, signal.SIGINT)
        assert front.stdout.read() == "1\n"
        assert front.wait(STALL_S) == 0


def test_ctrl_c_before_the_command_has_begun_is_ctrl_c() -> None:
    interrupted = (
        "import os, signal, sys\nfrom csrun.launch.process import foreground\n"
        "become = foreground._become\n"
        "def late(*arguments):\n    os.kill(os.getpid(), signal.SIGINT)\n    become(*arguments)\n"
        "foreground._become = late\n"
        "command = foreground.ForegroundCommand(('true',), {'PATH': os.defpath})\n"
        "sys.exit(foreground.run_in_foreground(command).exit_code)\n"
    )
    done = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")


def test_a_shell_has_its_job_control(environment: dict[str, str]) -> None:
    shell = (*AT_ONCE, "bash", "--norc", "--noprofile", "-i")
    with terminal(*shell, environment=environment) as tty:
        tty.wait_for("ready> ")
        tty.type("sleep 60\n")
        until(lambda: child_named("sleep", tty) is not None)
        tty.type("\x1a")
        tty.wait_for("Stopped")
        tty.type("kill %1; wait; stty size; exit 5\n")
        assert tty.exit_code() == 5


def test_ctrl_z_gives_the_outer_shell_back_and_fg_goes_on(environment: dict[str, str]) -> None:
    with terminal("bash", "--norc", "--noprofile", "-i", environment=environment) as tty:
        tty.wait_for("ready> ")
        tty.type(" ".join((*AT_ONCE, "sleep", "60")) + "\n")
        until(lambda: child_named("sleep", tty) is not None)
        tty.type("\x1a")
        tty.wait_for("Stopped")
        tty.type("fg\n")
        sleeper = child_named("sleep", tty)
        assert sleeper is not None
        until(lambda: sleeper.status() == psutil.STATUS_SLEEPING)
        tty.type("\x03")
        tty.type("echo code=$?; exit 5\n")
        assert tty.exit_code() == 5
        assert b"code=130" in tty.shown


def child_named(name: str, tty: Terminal) -> psutil.Process | None:
    found = [p for p in psutil.Process(tty.pid).children(recursive=True) if p.name() == name]
    return found[0] if found else None


@pytest.mark.parametrize("killed", ["front", "guardian", "command"])
def test_a_killed_one_leaves_the_terminal_as_it_was(
    killed: str, environment: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "modes.py"
    script.write_text(
        "import subprocess, sys, time, tty\ntty.setraw(0)\n"
        "subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "print('raw', flush=True)\ntime.sleep(60)\n"
    )
    command = " ".join((*AT_ONCE, "python", str(script)))
    with terminal("sh", "-c", f"{command}; cat", environment=environment) as tty:
        assert tty.is_cooked
        tty.wait_for("raw")
        assert not tty.is_cooked
        front = psutil.Process(tty.pid).children()[0]
        guardian = front.children()[0]
        command_process = guardian.children()[0]
        everyone = [p.pid for p in (front, guardian, command_process)]
        everyone += [p.pid for p in command_process.children()]
        victims = {"front": front, "guardian": guardian, "command": command_process}
        victims[killed].kill()
        assert gone(everyone)
        until(lambda: tty.is_cooked)


def test_no_command_is_left_when_both_around_it_are_killed(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """As by `pkill -9 csrun_cpu`, or by the kernel when memory is exhausted."""
    script = "trap '' HUP TERM; echo $$; exec sleep 600"
    with subprocess.Popen(
        [*AT_ONCE, "sh", "-c", script], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    ) as front:
        assert front.stdout is not None
        command = int(list(islice(front.stdout, 2))[-1])
        guardian = psutil.Process(command).ppid()
        assert psutil.Process(guardian).ppid() == front.pid
        for pid in (front.pid, guardian):
            os.kill(pid, signal.SIGSTOP)  # neither may end the command
        for pid in (front.pid, guardian):
            os.kill(pid, signal.SIGKILL)
        assert gone([command])


def test_sigterm_ends_a_command_that_does_not_heed_it(
    environment: dict[str, str], tmp_path: Path
) -> None:
    script = "trap '' TERM; touch up; while :; do sleep 0.1; done"
    environment["CSRUN_SITE"] = str(site_file(tmp_path, "local", grace_s=1))
    with subprocess.Popen([*AT_ONCE, "sh", "-c", script], cwd=tmp_path, env=environment) as front:
        until((tmp_path / "up").exists)
        pids = [p.pid for p in psutil.Process(front.pid).children(recursive=True)]
        front.send_signal(signal.SIGTERM)
        assert gone(pids)
        assert front.wait(STALL_S) == 128 + signal.SIGKILL
