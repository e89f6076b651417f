"""Wafer of a run: calls of its plan, and traced steps."""

import json
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from csrun.base.errors import CsrunError
from csrun.dashboard.run_detail import traces_of
from csrun.dashboard.wafer_view import read_plan, wafer_view
from csrun.records.model_dir import newest_compile
from csrun.site import load

from .conftest import FIRST, LAST, MINIBATCHES, TrainedRun

SYSTEM = load("local").systems[0]


def test_a_traced_step_has_the_calls_of_the_schedule_with_their_times(
    trained_run: TrainedRun,
) -> None:
    plan = trained_run.json("tfcs_*/plan.json")
    compiled = newest_compile(trained_run.model_dir)
    assert compiled is not None
    view = wafer_view(read_plan(compiled), SYSTEM, traces_of(trained_run.model_dir))
    calls = [(plan["visits"][call["visit"]], call["minibatch"]) for call in plan["schedule"]]
    assert [(each.function, each.minibatch) for each in view.visits] == [
        (visit["function"], minibatch) for visit, minibatch in calls
    ]
    assert len(calls) == MINIBATCHES * len(plan["visits"])
    for each, (visit, _) in zip(view.visits, calls, strict=True):
        groups = {*visit["groups"], *visit["gradients"]}
        names = {name for group in groups for name in plan["groups"][group]["layers"]}
        assert {view.layers[index].name for index in each.layers} == names
    assert [step.step for step in view.steps] == [*range(FIRST, LAST + 1)]
    traced = trained_run.json("trace/*.json")["traceEvents"]
    durations = [event["dur"] / 1e3 for event in traced if event.get("cat") == "compute"]
    shown = [call for step in view.steps for call in step.visits]
    assert [call.ended_ms - call.began_ms for call in shown] == pytest.approx(durations, abs=1e-5)
    for step in view.steps:
        assert all(a.ended_ms <= b.began_ms + 1e-5 for a, b in pairwise(step.visits))
        assert {span.track for span in step.others} >= {"compute", "input wait"}


def test_the_floor_plan_is_that_of_the_plan(trained_run: TrainedRun) -> None:
    plan = trained_run.json("tfcs_*/plan.json")
    compiled = newest_compile(trained_run.model_dir)
    assert compiled is not None
    view = wafer_view(read_plan(compiled), SYSTEM, ())
    (drawn,) = view.plans
    scale = drawn.fabric.width / SYSTEM.fabric_width
    for layer, region in zip(drawn.layers, plan["floor_plan"], strict=True):
        assert view.layers[layer.layer].name == region["layer"]
        place = region["rectangle"]
        wanted = [scale * place[key] for key in ("x", "y", "width", "height")]
        area = layer.area
        assert [area.x, area.y, area.width, area.height] == pytest.approx(wanted)
    assert view.problem == "no trace: set runconfig.trace_steps"


def test_a_trace_of_another_compile_and_a_damaged_plan_are_refused(
    trained_run: TrainedRun, tmp_path: Path
) -> None:
    compiled = newest_compile(trained_run.model_dir)
    assert compiled is not None
    trace = trained_run.json("trace/*.json")
    kept = [event for event in trace["traceEvents"] if not event["name"].startswith("visit 1:")]
    other = tmp_path / "steps_6_8.json"
    other.write_text(json.dumps({"traceEvents": kept}))
    view = wafer_view(read_plan(compiled), SYSTEM, (other,))
    assert (view.steps, view.problem) == ((), "steps_6_8.json is not of the newest compile")
    replicated = msgspec.structs.replace(read_plan(compiled), replicas=2)
    problem = wafer_view(replicated, SYSTEM, (other,)).problem
    assert problem == "steps_6_8.json has no visits: replicas compute them concurrently"
    other.write_text("[]")
    assert "cannot be read" in wafer_view(read_plan(compiled), SYSTEM, (other,)).problem
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(CsrunError, match="plan cannot be read"):
        read_plan(tmp_path)
