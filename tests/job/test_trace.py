"""Traced steps of a job and of one process: every visit in order, and unchanged bits."""

import json
from collections import defaultdict
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.fc_mnist import FcMnist, losses
from support.sites import separate_site

from csrun.base.errors import UsageError
from csrun.params import load

FIRST, LAST, STEPS = 6, 9, 14
TRACED = LAST - FIRST + 1
Tracks = dict[tuple[str, str], list[dict[str, Any]]]


def configure(place: FcMnist, **changes: Any) -> None:
    place.configure(
        model__hidden_sizes=[40, 40],
        runconfig__max_steps=STEPS,
        runconfig__log_steps=5,
        runconfig__save_checkpoints_steps=7,
        **changes,
    )


def tracks_of(place: FcMnist) -> Tracks:
    """The spans of each process's tracks, by both names; each event is one of the format's."""
    path = place.model_dir / "trace" / f"steps_{FIRST}_{LAST}.json"
    events = json.loads(path.read_text())["traceEvents"]
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    found: Tracks = defaultdict(list)
    for event in events:
        assert event["ph"] in ("M", "X")
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            pid, tid = event["pid"], event["tid"]
            found[names["process_name", pid, 0], names["thread_name", pid, tid]].append(event)
    return found


def follow_each_other(spans: list[dict[str, Any]]) -> bool:
    """Whether none begins before the last has ended; times are rounded to nanoseconds."""
    return all(a["ts"] + a["dur"] <= b["ts"] + 0.01 for a, b in pairwise(spans))


def run_once(folder: Path, **changes: Any) -> FcMnist:
    """The training in one process, for tests that only look at it."""
    place = FcMnist(folder)
    configure(place, **changes)
    done = place.cpu()
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> FcMnist:
    """The training, not traced."""
    return run_once(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def by_layers(tmp_path_factory: pytest.TempPathFactory) -> FcMnist:
    """The training, traced layer by layer."""
    steps = {"runconfig__trace_steps": [FIRST, LAST]}
    return run_once(tmp_path_factory.mktemp("traced"), **steps, runconfig__trace_layers=True)


def test_a_streaming_job_shows_each_process_at_its_work(place: FcMnist, plain: FcMnist) -> None:
    configure(place, runconfig__trace_steps=[FIRST, LAST])
    done = place.wse()
    assert done.returncode == 0, done.stderr
    assert losses(place.model_dir) == losses(plain.model_dir)
    assert place.checkpoint(STEPS).read_bytes() == plain.checkpoint(STEPS).read_bytes()

    (plan,) = (json.loads(p.read_text()) for p in place.model_dir.glob("tfcs_*/plan.json"))
    visits, groups = len(plan["visits"]), len(plan["groups"])
    tracks = tracks_of(place)
    wafer = {track: spans for (name, track), spans in tracks.items() if name.startswith("wafer ")}
    counts = {track: len(spans) for track, spans in wafer.items() if track != "settle"}
    assert counts == {
        "input wait": TRACED,
        "weights in": TRACED * visits,
        "compute": TRACED * visits,
        "gradients out": TRACED * groups,
    }
    everything = sorted((span for spans in wafer.values() for span in spans), key=lambda s: s["ts"])
    assert follow_each_other(everything)
    order = [span["name"].partition(":")[0] for span in wafer["compute"]]
    assert order == [f"visit {number}" for number in range(visits)] * TRACED
    assert len(tracks["memoryx", "update"]) == TRACED * groups
    batches = [len(tracks[f"streamer {rank}", "batch"]) for rank in (2, 3)]
    assert batches == [TRACED // 2] * 2
    assert len(tracks["chief", "checkpoint"]) == 1  # at step 7
    assert tracks["chief", "order"]


@pytest.mark.slow
def test_processes_of_other_machines_are_in_it(place: FcMnist) -> None:
    configure(place, runconfig__trace_steps=[FIRST, LAST])
    separate_site(place.path)
    layout = ("--total-nodes", "4", "--tasks-per-node", "2", "--cpus-per-task", "1")
    done = place.wse(layout=("--site", "separate.yaml", *layout))
    assert done.returncode == 0, done.stderr
    tracks = tracks_of(place)
    assert len(tracks["memoryx", "update"]) >= TRACED
    batches = [spans for (_, track), spans in tracks.items() if track == "batch"]
    assert [len(spans) for spans in batches] == [1] * 4
    computed = [s for (name, track), s in tracks.items() if track == "compute"]
    assert len(computed) == 1
    first, last = computed[0][0], computed[0][-1]
    updates = tracks["memoryx", "update"]
    slack_us = 1e6  # of machines' clocks; here they are one
    assert all(first["ts"] - slack_us < span["ts"] for span in updates)
    assert all(span["ts"] < last["ts"] + last["dur"] + slack_us for span in updates)


def test_each_layer_is_told_of_by_a_program_that_is_marked(
    plain: FcMnist, by_layers: FcMnist
) -> None:
    (program,) = plain.model_dir.glob("tfcs_*/program.py")
    assert "mark" not in program.read_text()
    assert by_layers.checkpoint(STEPS).read_bytes() == plain.checkpoint(STEPS).read_bytes()
    spans = tracks_of(by_layers)["this process", "layers"]
    assert follow_each_other(spans)
    own = [span["name"] for span in spans if span["name"].startswith("fc_")]
    forward = ["fc_0", "fc_1", "fc_out"]
    assert own == [*forward, *reversed(forward)] * TRACED
    computed = tracks_of(by_layers)["this process", "compute"]
    assert sum(span["dur"] for span in spans) <= sum(span["dur"] for span in computed)


@pytest.mark.slow
def test_resident_weights_are_updated_where_they_are(place: FcMnist, by_layers: FcMnist) -> None:
    configure(place, runconfig__trace_steps=[FIRST, LAST])
    done = place.wse(interpreter="python")
    assert done.returncode == 0, done.stderr
    for traced, others in ((place, {"batch"}), (by_layers, {"layers"})):
        tracks = tracks_of(traced)
        found = {track: len(spans) for (name, track), spans in tracks.items() if name != "chief"}
        assert set(found) - others == {"input wait", "compute", "update"}
        assert found["input wait"] == TRACED


def test_a_trace_that_cannot_be_written_is_a_warning(place: FcMnist) -> None:
    configure(place, runconfig__trace_steps=[FIRST, LAST])
    place.model_dir.mkdir()
    (place.model_dir / "trace" / f"steps_{FIRST}_{LAST}.json").mkdir(parents=True)
    done = place.cpu()
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "Cannot write the trace" in line)
    assert "training continues" in line
    assert place.checkpoint(STEPS).exists()


@pytest.mark.slow
def test_a_run_that_goes_on_leaves_the_trace_of_the_steps_before(place: FcMnist) -> None:
    configure(place, runconfig__trace_steps=[FIRST, LAST])
    for last in (LAST - 1, STEPS):
        assert "were not traced" not in place.cpu("--max_steps", str(last)).stderr
    traces = place.model_dir / "trace"
    before = {path.name: path.read_bytes() for path in traces.iterdir()}
    assert set(before) == {f"steps_{FIRST}_{LAST - 1}.json", f"steps_{LAST}_{LAST}.json"}
    done = place.cpu("--max_steps", str(STEPS + 2))
    assert done.returncode == 0, done.stderr
    assert f"this run computed {STEPS + 1} to " in done.stderr
    assert {path.name: path.read_bytes() for path in traces.iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runconfig__trace_steps": [LAST, FIRST]}, "runconfig.trace_steps: "),
        ({"runconfig__trace_layers": True}, "set runconfig.trace_steps, too"),
    ],
)
def test_steps_that_cannot_be_traced_are_refused(
    place: FcMnist, fc_mnist: Path, changes: dict[str, Any], message: str
) -> None:
    configure(place, **changes)
    with pytest.raises(UsageError, match=message):
        load(import_module("params").Params, place.path / "params.yaml")
