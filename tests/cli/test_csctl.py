"""csctl as a command: output for real jobs, by account."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.fc_mnist import MANY_STEPS, FcMnist
from support.jobs import STALL_S, Sandbox, gone, until
from support.terminals import SIZE, terminal
from support.testbed import NODES, site_file

from csrun.base import stored
from csrun.system import is_held

ONE_TASK = ("--total-nodes", "1", "--tasks-per-node", "1")
WAIT = "while [ ! -e go ]; do sleep 0.05; done"
HOLD = f'[ "$SLURM_PROCID" != 0 ] || {{ touch up; {WAIT}; }}'  # one task holds the nodes of all


@pytest.fixture
def place(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


@pytest.fixture
def small_site(place: Sandbox) -> Sandbox:
    """Site of a few nodes: a job that takes all of them has few processes."""
    return replace(place, site=site_file(place.path, "local"))


def shown(place: Sandbox, what: str) -> list[dict[str, object]]:
    done = place.csctl("get", what, "-o", "json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_a_site_where_nothing_ever_ran(place: Sandbox) -> None:
    assert shown(place, "jobs") == []
    done = place.csctl("get", "jobs")
    assert (done.stdout, done.stderr) == ("", "no jobs on site local\n")
    assert place.csctl("get", "jobs", "--since", "1h").stderr == "no such jobs on site local\n"
    assert "csrun_wse --array 1-3 CMD" in place.csctl("get", "array", "1").stderr
    assert [node["state"] for node in shown(place, "nodes")] == ["IDLE"] * 16
    assert [system["job"] for system in shown(place, "systems")] == [None, None]
    assert not (place.path / "state" / "local" / "jobs").exists()


def test_jobs_from_their_start_to_their_end(place: Sandbox) -> None:
    command = ("sh", "-c", f"touch up; {WAIT}; exit 3")
    asked = ("--total-nodes", "2", "--tasks-per-node", "1", "--job-name", "my job")
    with place.start(*asked, *command) as launcher:
        place.wait_for("up")
        (job,) = shown(place, "jobs")
        waited = place.csctl("wait", "1", "--timeout", "0:01")
        assert "csctl: error: job 1: --timeout 0:01 is over, and it is RUNNING" in waited.stderr
        assert "waiting until it has ended" in waited.stderr
        assert (job["state"], job["name"], job["nodes"]) == ("RUNNING", "my job", 2)
        assert job["command"] == list(command)
        nodes = {node["name"]: node["job"] for node in shown(place, "nodes")}
        assert [name for name, holder in nodes.items() if holder == 1] == ["node1", "node2"]
        (place.path / "go").touch()
        launcher.communicate(timeout=STALL_S)
    (job,) = shown(place, "jobs")
    assert (job["state"], job["exit_code"]) == ("FAILED", 3)
    assert "ended with exit code 3" in str(job["cause"])
    waited = place.csctl("wait", "1", "--for", "completed")
    assert (waited.returncode, waited.stdout) == (1, "job 1: FAILED\n")
    assert f"job 1: ended as FAILED: {job['cause']}" in waited.stderr
    assert {node["state"] for node in shown(place, "nodes")} == {"IDLE"}


def test_a_command_of_csrun_cpu_is_a_job(place: Sandbox) -> None:
    with place.start("sh", "-c", f"touch up; {WAIT}", command="csrun_cpu") as front:
        place.wait_for("up")
        (job,) = shown(place, "jobs")
        assert (job["state"], job["node_names"]) == ("RUNNING", ["node1"])
        (place.path / "go").touch()
        front.communicate(timeout=STALL_S)
    assert place.record(1)["state"] == "COMPLETED"
    assert not (place.jobs / "1").exists()
    done = place.csctl("logs", "1")
    assert done.returncode == 2
    assert "wrote to its terminal" in done.stderr


@pytest.mark.parametrize("command", ["csrun_wse", "csrun_cpu"])
def test_a_killed_launchers_job_is_lost(command: str, place: Sandbox) -> None:
    with place.start("sh", "-c", "touch up; sleep 60", command=command) as launcher:
        place.wait_for("up")
        launcher.kill()
        launcher.communicate(timeout=STALL_S)
    until(lambda: shown(place, "jobs")[0]["state"] == "LOST")
    assert "its launcher was killed" in place.csctl("get", "jobs").stdout
    assert place.record(1)["state"] == "LOST"
    assert {node["state"] for node in shown(place, "nodes")} == {"IDLE"}


def test_the_next_job_settles_what_a_killed_one_left(place: Sandbox) -> None:
    with place.start(*ONE_TASK, "sh", "-c", "touch up; echo $$ > pid; sleep 60") as launcher:
        place.wait_for("up")
        pid = place.pid("pid")
        launcher.kill()
        launcher.communicate(timeout=STALL_S)
    assert gone([pid])
    until(lambda: not is_held(place.jobs / "1" / "live.lock"))
    assert place.run(*ONE_TASK, "true").returncode == 0
    assert place.record(1)["state"] == "LOST"


def test_a_record_that_cannot_be_written_ends_no_job(place: Sandbox) -> None:
    records = place.jobs.parent / "records"
    done = place.run(*ONE_TASK, "sh", "-c", f"rm -r {records}; touch {records}; echo well")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "well"
    assert "csrun: job 1: record cannot be written" in done.stderr


def test_what_a_crash_of_the_machine_damages_stops_no_other_job(place: Sandbox) -> None:
    """Files of a running job are not flushed to the disk: a crash may leave them empty."""
    with place.start(*ONE_TASK, "sh", "-c", "touch up; sleep 60") as launcher:
        place.wait_for("up")
        launcher.kill()
        launcher.communicate(timeout=STALL_S)
    for name in ("systems.json", "job.json"):
        (place.jobs / "1" / name).write_bytes(b"")
    assert [job["state"] for job in shown(place, "jobs")] == ["LOST"]
    assert place.run(*ONE_TASK, "true").returncode == 0
    done = place.csctl("logs", "1")
    assert done.returncode == 1
    assert (
        f"csctl: error: {place.jobs / '1' / 'job.json'}: the job's plan is damaged" in done.stderr
    )


def test_without_a_node_there_is_no_job(place: Sandbox) -> None:
    assert place.run("--alloc-node", "False", "true", command="csrun_cpu").returncode == 0
    assert shown(place, "jobs") == []


def test_a_system_is_held_by_one_and_waited_for_by_the_next(tmp_path: Path) -> None:
    first, second = FcMnist(tmp_path / "first"), FcMnist(tmp_path / "second")
    (tmp_path / "state").mkdir()
    for place in (first, second):
        place.path.mkdir()
        (place.path / "state").symlink_to(tmp_path / "state")
    with first.start_wse("--max_steps", str(MANY_STEPS), script=first.slow_copy()) as one:
        until((first.jobs / "1" / "systems.json").exists)
        until(lambda: shown(first, "systems")[1]["job"] == 1)
        with second.start_wse("--max_steps", "2") as two:
            until((first.jobs / "2" / "systems.json").exists)
            until(lambda: shown(first, "systems")[1]["waiting"] == [2])
            assert "waits for cs2-02, held by job 1" in first.csctl("get", "job", "2").stdout
            assert first.csctl("cancel", "1").returncode == 0
            one.communicate(timeout=STALL_S)
            two.communicate(timeout=STALL_S)
    assert two.returncode == 0
    (of_first,), (of_second,) = first.record(1)["systems"], first.record(2)["systems"]
    assert of_first["system"] == of_second["system"] == "cs2-02"
    assert of_first["taken"] < of_first["given_back"] <= of_second["taken"]
    assert of_second["asked"] < of_first["given_back"]
    logs = first.csctl("logs", "2").stdout
    assert "global_step = " in logs
    assert first.csctl("logs", "2", "--role", "chief").stdout == logs
    assert first.csctl("logs", "2", "--role", "memoryx").returncode == 0
    assert first.csctl("logs", "2", "--role", "wafer").returncode == 0
    refused = first.csctl("logs", "2", "--role", "swarmx")
    assert refused.returncode == 2
    assert "job 2 has no swarmx; it has: chief, memoryx, streamer" in refused.stderr


def test_logs_are_followed_to_the_end_of_the_job(place: Sandbox) -> None:
    script = f"echo $SLURM_PROCID begins; touch up$SLURM_PROCID; {WAIT}; printf end"
    with place.start("--total-nodes", "2", "--tasks-per-node", "1", "sh", "-c", script) as launcher:
        place.wait_for("up0", "up1")
        with place.start("logs", "1", "--follow", command="csctl") as follower:
            assert follower.stdout is not None
            lines = {follower.stdout.readline() for _ in range(2)}
            assert lines == {"0: 0 begins\n", "1: 1 begins\n"}
            (place.path / "go").touch()
            launcher.communicate(timeout=STALL_S)
            rest, _ = follower.communicate(timeout=STALL_S)
    assert rest == "0: end\n1: end\n"
    assert follower.returncode == 0


def test_a_waiting_jobs_logs_are_followed_from_their_beginning(small_site: Sandbox) -> None:
    place = small_site
    hold = ("--total-nodes", f"{NODES}", "--tasks-per-node", "1", "sh", "-c", HOLD)
    with place.start(*hold) as first:
        place.wait_for("up")
        with place.start(*ONE_TASK, "echo", "at last") as second:
            place.wait_for_state(2, "PENDING")
            refused = place.csctl("logs", "2")
            assert refused.returncode == 2
            assert "job 2 has no logs yet" in refused.stderr
            with place.start("logs", "2", "-f", command="csctl") as follower:
                (place.path / "go").touch()
                assert follower.communicate(timeout=STALL_S)[0] == "at last\n"
            second.communicate(timeout=STALL_S)
        first.communicate(timeout=STALL_S)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_that_ended_before_it_ran_says_so(how: signal.Signals, small_site: Sandbox) -> None:
    place = small_site
    hold = ("--total-nodes", f"{NODES}", "--tasks-per-node", "1", "sh", "-c", HOLD)
    with place.start(*hold) as first:
        place.wait_for("up")
        with place.start(*ONE_TASK, "true") as second:
            place.wait_for_state(2, "PENDING")
            with place.start("logs", "2", "-f", command="csctl") as follower:
                second.send_signal(how)
                second.communicate(timeout=STALL_S)
                _, err = follower.communicate(timeout=STALL_S)
        (place.path / "go").touch()
        first.communicate(timeout=STALL_S)
    why = {signal.SIGTERM: "SIGTERM", signal.SIGKILL: "its launcher was killed"}[how]
    assert f"job 2 has no logs: it ended before it started: {why}" in err
    assert follower.returncode == 2


def test_jobs_start_in_the_order_they_came(small_site: Sandbox) -> None:
    """A small job does not overtake a large one that waits before it."""
    place = small_site
    hold = ("--total-nodes", f"{NODES - 1}", "--tasks-per-node", "1", "sh", "-c", HOLD)
    with place.start(*hold) as first:
        place.wait_for("up")
        with place.start("--total-nodes", f"{NODES}", "--tasks-per-node", "1", "true") as large:
            place.wait_for_state(2, "PENDING")
            with place.start(*ONE_TASK, "true") as small:
                until(lambda: place.csctl("get", "jobs").stdout.count("waits for") == 2)
                reasons = [job["reason"] for job in shown(place, "jobs")]
                assert reasons[1] == f"{NODES} of the {NODES} nodes: job 1 holds {NODES - 1}"
                held = f"job 1 holds {NODES - 1}, job 2 is ahead of it"
                assert reasons[2] == f"1 of the {NODES} nodes: {held}"
                (place.path / "go").touch()
                for launcher in (first, large, small):
                    launcher.communicate(timeout=STALL_S)
                    assert launcher.returncode == 0
    assert place.record(2)["ended"] <= place.record(3)["started"]


def test_old_jobs_are_shown_when_they_are_asked_for(place: Sandbox) -> None:
    assert place.run(*ONE_TASK, "true").returncode == 0
    records = place.jobs.parent / "records"
    for job_id in range(2, 31):
        record = place.record(1) | {"job_id": job_id}
        (records / f"{job_id}.json").write_bytes(stored.text_of(record))
    assert [job["job_id"] for job in shown(place, "jobs")] == list(range(21, 31))
    everything = place.csctl("get", "jobs", "--all").stdout.splitlines()
    assert [line.split()[0] for line in everything] == ["JOB", *map(str, range(1, 31))]
    assert place.run(*ONE_TASK, "true").stderr.startswith("srun: job 31 queued")


def test_a_terminal_and_a_pipe_get_the_same_columns(place: Sandbox) -> None:
    piped = place.csctl("get", "systems").stdout.splitlines()
    assert piped[0].split() == ["SYSTEM", "ADDRESS", "MODE", "POWER", "AVAILABLE", "JOB", "WAITING"]
    assert piped[1].split() == ["cs2-01", "127.0.0.1", "PIPELINED", "ACTIVE", "yes"]
    place.run("system", "standby", "--yes", command="cs")
    standby = place.csctl("get", "systems").stdout.splitlines()[1]
    assert standby.split()[3:] == ["STANDBY", "no", "(in", "STANDBY)"]
    environment = {**os.environ, "CSRUN_STATE_DIR": str(place.path / "state"), "TERM": "xterm"}
    csctl = (sys.executable, "-m", "csrun.cli.csctl", "get", "systems")
    with terminal(*csctl, environment=environment) as tty:
        tty.wait_for("SYSTEM  ADDRESS")
        tty.wait_for("cs2-02")
        assert tty.exit_code() == 0


def test_a_job_with_a_long_name_is_one_line_of_a_terminal(place: Sandbox) -> None:
    name = "a-name-of-more-than-a-hundred-characters-" + "x" * 80
    assert place.run(*ONE_TASK, "--job-name", name, "true").returncode == 0
    environment = {**os.environ, "CSRUN_STATE_DIR": str(place.path / "state"), "TERM": "xterm"}
    csctl = (sys.executable, "-m", "csrun.cli.csctl", "get", "jobs")
    with terminal(*csctl, environment=environment) as tty:
        assert tty.exit_code() == 0
        _, row = tty.read().decode().splitlines()
        assert row.split()[1].startswith("a-name-of-more-than-a-hundred-")
        assert (len(row) <= SIZE[1], row.count("…")) == (True, 1)
    assert name in place.csctl("get", "job", "1").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gte",), "Did you mean 'get'?"),
        (("get", "job", "x"), "must be a whole number from 1 to 2147483647, got 'x'"),
        (("get", "job", "9" * 300), "must be a whole number from 1"),
        (("cancel", "1x"), "must be a whole number from 1 to 2147483647, got '1x'"),
        (("--site", "no-such", "get", "jobs"), "neither a shipped site"),
        (("get", "jobs", "--site", "no-such"), "neither a shipped site"),
        (("get", "jobs", "--all", "--site=no-such"), "neither a shipped site"),
        (("get", "jobs", "--site"), "No such option '--site'"),
        (("logs", "3"), "job 3: no such job on site local"),
        (("logs", "3", "--role", "boss"), "got 'boss'"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], said: str, place: Sandbox) -> None:
    done = place.csctl(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("noun", ["jobs", "nodes", "systems"])
def test_a_site_of_another_scheduler_needs_its_commands(place: Sandbox, noun: str) -> None:
    shipped = (Path(__file__).parents[2] / "site_configs" / "local.yaml").read_text()
    site = place.path / "cluster.yaml"
    site.write_text(shipped.replace("scheduler: local", "scheduler: slurm"))
    there = replace(place, variables=(("PATH", str(place.path)),))
    done = there.csctl("--site", str(site), "get", noun)
    assert done.returncode == 2
    assert "scheduler slurm: srun: command not found" in done.stderr


def test_help_imports_little() -> None:
    program = (
        "import sys\nfrom csrun.cli import csctl, frame\n"
        "frame.run(csctl.csctl, ['get', '--help'])\n"
        "print([m for m in ('rich', 'numpy', 'msgspec', 'psutil') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
