"""cs_input_analyzer under either scheduler: measured on one node, verified on all."""

import json

import pytest
from support.jobs import Sandbox
from support.pipelines import MEASURING_SCRIPT


def test_it_measures_on_a_node_and_verifies_on_several(place: Sandbox) -> None:
    place.script(MEASURING_SCRIPT)
    arguments = ("--verify", "--target", "300000", "python-ws", "run.py", "--compile_only")
    done = place.run(*arguments, command="cs_input_analyzer")
    assert done.returncode == 0, done.stderr
    told = json.loads((place.path / "input_analysis.json").read_text())
    layout, fed = told["solution"]["layout"], told["verified"]["fed"]
    assert fed["streamers"] == layout["streamers"]
    if told["site"]["one_machine"]:
        assert layout["samples_per_s"] == pytest.approx(200_000)  # two CPUs do no more
    else:
        assert (layout["nodes"], layout["tasks_per_node"]) == (3, 4)
        assert layout["samples_per_s"] == pytest.approx(400_000)  # of eight CPUs a node


def test_the_exit_code_of_a_failing_command_is_passed_on(place: Sandbox) -> None:
    arguments = ("sh", "-c", "exit 7", "--compile_only")
    assert place.run(*arguments, command="cs_input_analyzer").returncode == 7
