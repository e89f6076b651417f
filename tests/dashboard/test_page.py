"""The dashboard's page in a browser: values equal the files', and texts are escaped."""

import json
import re
from collections.abc import Iterator
from itertools import chain
from math import log10
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from support.browser import chromium, needs_browser, show
from support.dashboards import serving
from support.fc_mnist import MANY_STEPS, FcMnist, losses
from support.jobs import STALL_S, Sandbox, until
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from csrun.cli import frame
from csrun.cli.csrun import csrun
from csrun.records.events import EventWriter

from .conftest import MINIBATCHES, STEPS, TrainedRun

pytestmark = needs_browser

RATES = {
    "local_samples_per_sec": "Rate, samples/s",
    "avg_samples_per_sec": "GlobalRate, samples/s",
}
Curve = list[tuple[float, float]]
ESCAPE = "\x1b[31m"
EVIL = "<script>document.title='changed'</script><img src=x onerror=\"document.title='changed'\">"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    with chromium(tmp_path / "profile") as driver:
        yield driver
        assert driver.get_log("browser") == []


def all_of(driver: Any, selector: str) -> list[Any]:
    found: list[Any] = driver.find_elements("css selector", selector)
    return found


def texts(driver: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
    found: list[str] = driver.execute_script(script, selector)
    return found


def table_of(driver: Any, selector: str) -> list[list[str]]:
    """Texts of a table's body."""
    script = """return [...document.querySelectorAll(`${arguments[0]} tbody tr`)]
        .map((row) => [...row.cells].map((cell) => cell.textContent))"""
    found: list[list[str]] = driver.execute_script(script, selector)
    return found


def wait_for(driver: Any, selector: str) -> Any:
    until(lambda: bool(all_of(driver, selector)))
    return all_of(driver, selector)[0]


def open_page(driver: Any, url: str) -> None:
    driver.get("about:blank")  # another fragment of one address would not load it again
    driver.get(url)


def six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def three_digits(seconds: float) -> str:
    """Format of times below 100 s."""
    if not seconds:
        return "0 s"
    units = [(seconds, "s"), (1e3 * seconds, "ms"), (1e6 * seconds, "µs")]
    value, unit = next((each for each in units if each[0] >= 0.9995), units[-1])
    return f"{value:#.3g}".rstrip(".") + f" {unit}"


def export(folder: Path, path: Path) -> Path:
    assert frame.run(csrun, ["dashboard", str(folder), "--export", str(path)]) == 0
    return path


def check_values(driver: Any, run: TrainedRun) -> None:
    """Check a displayed run against its files."""
    logged, record = run.logged, run.json("performance/performance.json")
    last = max(logged)
    wait_for(driver, "#newest tbody tr")
    shown = dict(table_of(driver, "#newest"))
    values = {tag: v for tag, v in logged[last].items() if not tag.startswith("seconds/")}
    for tag, title in RATES.items():
        assert float(shown.pop(title).replace(",", "")) == pytest.approx(values.pop(tag), rel=0.01)
    values["learning rate"] = values.pop("lr")
    assert {title: float(value) for title, value in shown.items()} == {
        tag: six_digits(value) for tag, value in values.items()
    }
    rows = {row: (time, share) for row, time, share, _ in table_of(driver, "#ledger")}
    assert rows == {
        row["row"].replace("_", " "): (three_digits(row["seconds"]), f"{100 * row['share']:.1f} %")
        for row in record["ledger"]
    }
    facts = dict(
        zip(texts(driver, "#performance dt"), texts(driver, "#performance dd"), strict=True)
    )
    assert facts["Samples"] == f"{record['total_samples']:,}"
    assert facts["Samples/s"] == f"{record['samples_per_sec']:,.0f}"
    names = [row[1] for row in table_of(driver, "#checkpoints")]
    assert names == [f"model-ckpt-{step}" for step in (0, STEPS // 2, STEPS)]
    check_curve(driver, {step: values["loss"] for step, values in logged.items()})


def lines_in(driver: Any, selector: str) -> list[Curve]:
    """Points of a chart's lines."""
    script = """return [...document.querySelectorAll(`${arguments[0]} polyline`)]
        .map((line) => [...line.points].map((p) => [p.x, p.y]))"""
    return [[*map(tuple, line)] for line in driver.execute_script(script, selector)]


def check_curve(driver: Any, values: dict[int, float]) -> None:
    """Check that the loss curve is to scale with the logged values."""
    check_lines(lines_in(driver, "#loss"), [[*values.items()]])


def check_lines(
    drawn: list[list[tuple[float, float]]], values: list[list[tuple[float, float]]]
) -> None:
    """Check that points are to scale, with one scale for all lines of a chart."""
    assert [*map(len, drawn)] == [*map(len, values)]
    points, wanted = [*chain(*drawn)], [*chain(*values)]
    low, high = min(y for _, y in wanted), max(y for _, y in wanted)
    if low > 0 and high / low > 100:
        wanted = [(x, log10(y)) for x, y in wanted]
    for at in (0, 1):
        shown, true = [point[at] for point in points], [value[at] for value in wanted]
        first, last = true.index(min(true)), true.index(max(true))
        scale = (shown[last] - shown[first]) / (true[last] - true[first])
        assert [each - shown[first] for each in shown] == pytest.approx(
            [scale * (each - true[first]) for each in true], abs=0.05
        )


def loads_in(job: Path) -> dict[str, list[tuple[float, float, float]]]:
    """Times, CPU in percent and memory in MB of a job's tasks by log, from the launcher's file."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    before: dict[str, tuple[float, float]] = {}
    for line in (job / "usage-0.log").read_text().splitlines():
        taken_s, tasks = json.loads(line.partition(" ")[2])
        for log, _, _, age_s, cpu_s, nbytes in tasks:
            begun_s, used_s = before.get(log, (taken_s - age_s, 0.0))
            before[log] = taken_s, cpu_s
            passed_s = taken_s - begun_s
            percent = 100 * (cpu_s - used_s) / passed_s if passed_s else 0.0
            found.setdefault(log, []).append((taken_s, percent, nbytes / 1e6))
    return found


def check_loads(driver: Any, job: Path) -> None:
    """Check lines of the tasks' CPU and memory against the launcher's file."""
    loads = loads_in(job)
    logs = [row.get_attribute("data-key") for row in all_of(driver, "#tasks tbody tr")]
    assert {*logs} == {*loads}
    for selector, at in (("#task-cpu", 1), ("#task-memory", 2)):
        drawn = lines_in(driver, selector)
        check_lines(drawn, [[(load[0], load[at]) for load in loads[log]] for log in logs])
        assert texts(driver, f"{selector} .legend li") == [
            row[0] for row in table_of(driver, "#tasks table")
        ]


def check_replay(driver: Any, run: TrainedRun) -> None:
    """Check that the slider steps through the schedule's calls, and the floor plan follows."""
    plan = run.json("tfcs_*/plan.json")
    slider = wait_for(driver, "#call")
    order = plan["schedule"]
    assert int(slider.get_attribute("max")) == len(order) - 1 == 8 * MINIBATCHES - 1 - 8
    for at in (0, 5, len(order) - 1):
        driver.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))",
            slider, at,
        )  # fmt: skip
        visit = plan["visits"][order[at]["visit"]]
        (caption,) = texts(driver, "#call-caption")
        wanted = f"Call {at + 1} of {len(order)}: {visit['function'].replace('_', ' ')}; "
        assert caption.startswith(f"{wanted}minibatch {order[at]['minibatch']}; ")
        assert re.search(r"; [\d.]+ ms, from [\d.]+ ms$", caption)
        groups = {*visit["groups"], *visit["gradients"]}
        layers = {name for group in groups for name in plan["groups"][group]["layers"]}
        lit = {row.get_attribute("data-key") for row in all_of(driver, "#wafer tr.lit")}
        assert lit == layers
        assert len(all_of(driver, "#wafer .place.lit")) == len(layers)


def test_values_are_those_of_the_files_live_and_exported(
    browser: Any, trained_run: TrainedRun, tmp_path: Path, state: str
) -> None:
    with serving(trained_run.model_dir.parent) as server:
        open_page(browser, server.url)
        wait_for(browser, "#table tbody tr td a").click()
        check_values(browser, trained_run)
        check_replay(browser, trained_run)
        (link,) = [a for a in all_of(browser, "#files a") if "compile_report" in a.text]
        open_page(browser, link.get_attribute("href"))
        assert texts(browser, "h1") == ["Compile report"]
        wait_for(browser, ".sortable thead button").click()  # its script runs, in its sandbox
        assert browser.execute_script("return self.origin") == "null"
    page = export(trained_run.model_dir, tmp_path / "run.html")
    assert "http://" not in re.sub(r"http://www\.w3\.org/2000/svg", "", page.read_text())
    for scheme in ("light", "dark"):
        show(browser, page, 1200, scheme)
        wait_for(browser, "#table tbody tr td a").click()
        check_values(browser, trained_run)
        check_replay(browser, trained_run)
    show(browser, page, 400, "light")
    wait_for(browser, "#table tbody tr td a").click()
    wait_for(browser, "#files p")
    assert width_beyond(browser) <= 0  # also with the report's path


def width_beyond(driver: Any) -> int:
    """Pixels by which the page is wider than its window."""
    root = "document.documentElement"
    return int(driver.execute_script(f"return {root}.scrollWidth - {root}.clientWidth"))


def test_runs_are_sorted_filtered_and_compared(browser: Any, tmp_path: Path, state: str) -> None:
    for name, rate in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        folder = tmp_path / "runs" / name
        writer = EventWriter(folder)
        for step in (10, 20):
            values = {"loss": rate / step, "local_samples_per_sec": rate}
            writer.scalars(values | {"train/loss_scale": 2.0**step}, step)
        writer.close()
        (folder / "train").mkdir()
        (folder / "train" / "params_train.yaml").write_text(f"lr: {rate}\nseed: 1\n")
    with serving(tmp_path / "runs") as server:
        open_page(browser, server.url)
        wait_for(browser, "#table tbody tr")
        heads = {head.text: head for head in all_of(browser, "#table thead button")}
        for rows in ("acb", "bca"):
            heads["Rate, samples/s"].click()
            assert "".join(row[1] for row in table_of(browser, "#table")) == rows
        wait_for(browser, "#filter").send_keys("runs/c")
        assert [row[1] for row in table_of(browser, "#table")] == ["c"]
        wait_for(browser, "#filter").clear()
        browser.execute_script(
            "document.querySelector('#filter').dispatchEvent(new Event('input'))"
        )
        for box in all_of(browser, "#table tbody input"):
            box.click()
        wait_for(browser, "#compare").click()
        wait_for(browser, "#settings tbody tr")
        assert table_of(browser, "#settings") == [["train: lr", "3.0", "2.0", "1.0"]]
        assert len(all_of(browser, "#comparison polyline")) == 9
        assert texts(browser, "#compared-tag option") == ["loss scale"]
        wait_for(browser, "#everything").click()
        assert table_of(browser, "#settings")[1] == ["train: seed", "1", "1", "1"]
        assert texts(browser, "#settings tr.lit td:first-child") == ["train: lr"]
    for number in range(197):
        copytree(tmp_path / "runs" / "a", tmp_path / "runs" / f"a{number}")
    with serving(tmp_path / "runs") as server:
        open_page(browser, server.url)
        until(lambda: len(all_of(browser, "#table tbody tr")) == 200)


def test_hostile_names_are_texts(browser: Any, tmp_path: Path, state: str) -> None:
    name, tag = f"<img src=x onerror=alert(1)>{ESCAPE}", f"{EVIL}{ESCAPE}" + "x" * 10_000
    folder = tmp_path / "runs" / name
    writer = EventWriter(folder)
    writer.scalars({"loss": 1.0}, 1)
    value = Summary.Value(tag=tag, simple_value=2.0)  # csrun's own tags have no such characters
    writer._write(Event(step=1, summary=Summary(value=[value])))
    writer._writer.flush()
    writer.close()
    (folder / "train").mkdir()
    params = {EVIL: f"</script>{EVIL}\u202e", "runconfig": {"seed": 1}}
    (folder / "train" / "params_train.yaml").write_text(json.dumps(params))
    shown_name = name.replace("\x1b", "\\x1b")
    page = export(tmp_path / "runs", tmp_path / "run.html")
    with serving(tmp_path / "runs") as server:
        for url in (server.url, page.as_uri()):
            open_page(browser, url)
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            link = wait_for(browser, "#table tbody tr td a")
            assert link.get_attribute("textContent") == shown_name
            run = link.get_attribute("href").partition("#run/")[2]
            link.click()
            wait_for(browser, "#newest tbody tr")
            assert texts(browser, "#run h2") == [shown_name]
            (shown,) = [row for row in texts(browser, "#newest td") if row.startswith("<script>")]
            assert shown == tag.replace("\x1b", "\\x1b")
            assert width_beyond(browser) <= 0
            open_page(browser, f"{url}#compare/{run},{run}")
            wait_for(browser, "#everything").click()
            cells = texts(browser, "#settings td.value")
            assert f"</script>{EVIL}\\u{{202e}}" in cells
            assert all_of(browser, "img") == []
            assert browser.title == "csrun dashboard"


def test_a_job_that_ends_while_it_is_looked_at(browser: Any, tmp_path: Path, state: str) -> None:
    place = FcMnist(tmp_path)
    place.configure(runconfig__max_steps=MANY_STEPS, runconfig__log_steps=5)
    with place.start_wse("--mode", "train", script=place.slow_copy()) as launcher:
        place.wait_for_state(1, "RUNNING")
        with serving(tmp_path) as server:
            open_page(browser, f"{server.url}#run/1")
            until(lambda: len(texts(browser, "#newest td")) > 2)
            until(lambda: len(losses(place.model_dir)) > 3)
            roles = [row[2] for row in table_of(browser, "#tasks")]
            assert roles == ["chief", "wafer", "memoryx", "streamer", "streamer"]
            # where the start was slow, the wafer's first use is written up to 5 s after it
            until(lambda: all(row[6].endswith("MB") for row in table_of(browser, "#tasks")))
            assert {row[4] for row in table_of(browser, "#tasks")} == {"running"}
            assert texts(browser, "#subtitle")[0].startswith("RUNNING, ")
            assert texts(browser, "#run h2") == ["job 1: run.py"]
            until(lambda: "first group" in texts(browser, "#ledger .legend li"))
            launcher.terminate()
            launcher.communicate(timeout=STALL_S)
            until(lambda: texts(browser, "#subtitle")[0].startswith("CANCELLED, "))
            assert "SIGTERM" in texts(browser, "#failure")[0]
            assert {row[4] for row in table_of(browser, "#tasks")} <= {"ended", "failed"}
            check_loads(browser, place.jobs / "1")
            logged = losses(place.model_dir)
            until(lambda: f"step {max(logged):,}," in texts(browser, "#newest p")[0])
            shown = dict(table_of(browser, "#newest"))
            assert float(shown["loss"]) == six_digits(logged[max(logged)])
            check_curve(browser, dict(sorted(logged.items())))
            slider = wait_for(browser, "#call")
            assert "Planned order, without times" in texts(browser, "#wafer p")[0]
            assert texts(browser, "#call-caption")[0].startswith("Call 1 of ")
            assert "computing" in {row[5] for row in table_of(browser, "#wafer")}
            assert int(slider.get_attribute("max")) > 0
            assert "as planned" in texts(browser, "#memoryx p")[0]
            wait_for(browser, "#log-search").send_keys("global_step = 5,")
            all_of(browser, "#logs button")[0].click()
            until(lambda: "global_step = 5," in texts(browser, "#logs pre")[0])
            until(lambda: "Running the CS Client" not in texts(browser, "#logs pre")[0])
            assert "global_step = 5," in texts(browser, "#logs pre")[0]
        open_page(browser, f"{export(tmp_path, tmp_path / 'run.html').as_uri()}#run/1")
        wait_for(browser, "#task-cpu polyline")
        check_loads(browser, place.jobs / "1")


def test_a_failed_command_and_an_empty_folder_on_a_phone(
    browser: Any, tmp_path: Path, state: str
) -> None:
    """A job without a training has no empty panels, and the page fits a phone."""
    with serving(tmp_path) as server:
        open_page(browser, server.url)
        until(lambda: "no jobs, and no model_dirs below" in texts(browser, "#notice")[0])
        assert texts(browser, "#count") == ["0 runs"]
        assert Sandbox(tmp_path).run("--total-nodes", "1", "false").returncode == 1
        size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        open_page(browser, f"{server.url}#run/1")
        until(lambda: texts(browser, "#run h2") == ["job 1: false"])
        assert "ended with exit code 1" in texts(browser, "#failure")[0]
        shown = [each.get_attribute("id") for each in all_of(browser, "section:not([hidden])")]
        until(lambda: not all_of(browser, "section#wafer:not([hidden])"))
        assert {*shown} - {"wafer"} == {"tasks", "logs", "details"}
        script = "return document.documentElement.scrollWidth - innerWidth"
        assert browser.execute_script(script) <= 0
