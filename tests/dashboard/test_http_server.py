"""The dashboard's server: authorization and responses."""

import json
import signal
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from support.dashboards import asked, events, get, serving
from support.jobs import STALL_S, Sandbox, until

from csrun.base.mode import ExecutionMode
from csrun.context import JobFile, Role, TaskEntry
from csrun.jobs.record import Outcome, RecordState
from csrun.jobs.registered_job import registered
from csrun.jobs.request import JobOptions
from csrun.records import log_lines
from csrun.records.events import EventWriter
from csrun.site import load

PATHS = ("/", "/events", "/run", "/settings", "/wafer", "/log", "/file", "/favicon.ico")
ENTRY = TaskEntry(0, Role.CHIEF, "node1", 0, 0, (0,))


@pytest.mark.parametrize("token", ["", "x", "\u00e9\n"])
def test_a_request_without_the_token_is_refused(tmp_path: Path, state: str, token: str) -> None:
    with serving(tmp_path) as server:
        for path in PATHS:
            status, _, body = get(server, path, token=token)
            assert (status, body) == (403, b"403: the address needs its token\n")


def test_it_listens_on_this_machine_alone_and_loads_nothing_from_elsewhere(
    tmp_path: Path, state: str
) -> None:
    with serving(tmp_path) as server, serving(tmp_path) as other:
        assert server.socket.getsockname()[0] == "127.0.0.1"
        assert server.token != other.token
        status, headers, body = get(server, "/")
        assert (status, headers["Referrer-Policy"]) == (200, "no-referrer")
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        text = body.decode()
        assert server.token not in text
        assert [word for word in ("src=", "@import", "https://", "innerHTML") if word in text] == []
        with socket.create_connection(server.server_address[:2]) as plain:
            plain.sendall(b"POST / HTTP/1.0\r\n\r\n")
            assert plain.recv(100).startswith(b"HTTP/1.0 501")


def test_runs_are_named_by_ids_and_no_path_leads_out(tmp_path: Path, state: str) -> None:
    (tmp_path / "secret.json").write_text("{}")
    folder = tmp_path / "runs"
    writer = EventWriter(folder / "x")
    writer.scalars({"loss": 1.0}, 1)
    writer.close()
    with serving(folder) as server, events(server) as found:
        name, table = next(found)
        (row,) = table["rows"]
        assert (name, row["name"], row["loss"]) == ("table", "x", 1.0)
        for run in ("7", "../x", str(folder / "x"), "\udcff"):
            status, _, body = get(server, "/run", run=run.encode(errors="replace").decode())
            assert (status, "no such run" in json.loads(body)["error"]) == (404, True)
        for name in ("../../secret.json", "/etc/passwd", "compile_report"):
            assert get(server, "/file", run=row["id"], name=name)[0] == 404
        assert get(server, "/log", run=row["id"], task="rank-00000")[0] == 404


def test_a_job_that_ends_while_it_is_watched(tmp_path: Path, state: str) -> None:
    site = load("local")
    with registered(site, ("python", "run.py"), JobOptions("digits"), 1, 1) as job:
        job.start(("node1",))
        JobFile(
            job.job_id, ExecutionMode.PIPELINED, ("python", "run.py"), str(tmp_path), "local",
            1, 1, (ENTRY,),
        ).write(job.folder.path)  # fmt: skip
        job.folder.create_subfolders()
        log = f"INFO:csrun:{log_lines.saving_to(Path('runs'))}\nfirst\x1b[31m line\nsecond line\n"
        job.folder.log("rank-00000").write_text(log)
        writer = EventWriter(tmp_path / "runs")
        writer.scalars({"loss": 2.5}, 10)
        key = str(job.job_id)
        with serving(tmp_path / "elsewhere") as server, events(server, key) as found:
            messages = (data for name, data in found if name == "run")
            first = next(messages)
            assert (first["detail"]["state"], first["after"]) == ("RUNNING", 0)
            assert [point[0::2] for point in first["points"]] == [[10, {"loss": 2.5}]]
            writer.scalars({"loss": float("inf"), "lr": 0.5}, 20)
            writer.close()
            second = next(messages)
            assert second["after"] == 0  # the last point may have got values
            assert [point[0::2] for point in second["points"]] == [
                [10, {"loss": 2.5}], [20, {"loss": "inf", "lr": 0.5}]
            ]  # fmt: skip
            lines = asked(server, "/log", run=key, task="rank-00000", search="LINE")
            assert lines["lines"] == ["first\x1b[31m line", "second line"]
            job.end(Outcome(RecordState.FAILED, 7, "rank 0 failed: <b>"))
            last = next(each for each in messages if each["detail"]["state"] == "FAILED")
            assert last["detail"]["failure"] == "rank 0 failed: <b>"
            assert [task["state"] for task in last["detail"]["tasks"]] == ["ended"]


def test_a_page_that_is_closed_is_no_longer_served(tmp_path: Path, state: str) -> None:
    with serving(tmp_path) as server:
        others = {*threading.enumerate()}  # one of an earlier test's server may be about to end
        with events(server) as found:
            next(found)
            (serving_it,) = {*threading.enumerate()} - others
        until(lambda: not serving_it.is_alive())


def test_the_command_prints_an_address_and_ends_by_ctrl_c(tmp_path: Path, state: str) -> None:
    place = Sandbox(tmp_path)
    with place.start("dashboard", command="csrun") as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        with urlopen(url) as answer:
            assert b"csrun dashboard" in answer.read()
        port = urlsplit(url).port
        other = place.run("dashboard", "--port", str(port), command="csrun")
        assert other.returncode == 1
        missing = place.run("dashboard", "nowhere", command="csrun")
        assert (missing.returncode, "nowhere: no such folder" in missing.stderr) == (2, True)
        assert f"127.0.0.1:{port}: cannot be served: Address already in use" in other.stderr
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=STALL_S)
        assert (process.returncode, err) == (0, "")
