"""Trace files in the Trace Event Format."""

import json
from pathlib import Path

import pytest

from csrun.base.errors import CsrunError
from csrun.records import trace_file
from csrun.records.trace_file import Process, Span

DAY_NS = 1_700_000_000_000_000_000  # a float would lose a quarter of a microsecond there
RUN = (
    Process("chief", (Span("order", "step 5", DAY_NS, DAY_NS + 9_001),)),
    Process(
        "wafer",
        (
            Span("input wait", "step 5", DAY_NS + 1_003, DAY_NS + 2_004),
            Span("compute", "visit 0", DAY_NS + 2_004, DAY_NS + 8_000),
            Span("input wait", "step 6", DAY_NS + 8_000, DAY_NS + 8_001),
        ),
    ),
)


def test_spans_are_complete_events_in_named_tracks(tmp_path: Path) -> None:
    path = trace_file.path_of(tmp_path, 5, 6)
    trace_file.write(path, RUN)
    events = json.loads(path.read_text())["traceEvents"]
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if (event["ph"], event["name"]) == ("M", "thread_name")
    }
    assert names == {(1, 1): "order", (2, 1): "input wait", (2, 2): "compute"}
    processes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert processes == ["chief", "wafer"]
    found = [(names[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if "ts" in e]
    assert found == [
        ("order", "step 5", 0.0, 9.001),
        ("input wait", "step 5", 1.003, 1.001),
        ("compute", "visit 0", 2.004, 5.996),
        ("input wait", "step 6", 8.0, 0.001),
    ]
    assert [path.name for path in path.parent.iterdir()] == ["steps_5_6.json"]


def test_a_trace_of_nothing_is_an_empty_one(tmp_path: Path) -> None:
    trace_file.write(tmp_path / "a.json", ())
    assert json.loads((tmp_path / "a.json").read_text())["traceEvents"] == []


def test_a_folder_that_takes_nothing_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("in its place")
    with pytest.raises(CsrunError, match="trace"):
        trace_file.write(trace_file.path_of(tmp_path, 5, 6), RUN)


def test_a_file_is_read_with_times_since_its_first_span(tmp_path: Path) -> None:
    path = trace_file.path_of(tmp_path, 5, 6)
    trace_file.write(path, RUN)
    found = trace_file.read(path)
    assert [process.name for process in found] == ["chief", "wafer"]
    for process, written in zip(found, RUN, strict=True):
        for span, original in zip(process.spans, written.spans, strict=True):
            assert (span.track, span.name) == (original.track, original.name)
            assert (span.began_ns, span.ended_ns) == (
                original.began_ns - DAY_NS, original.ended_ns - DAY_NS
            )  # fmt: skip
    path.write_text('{"traceEvents": 1}')
    with pytest.raises(ValueError, match="array"):
        trace_file.read(path)
