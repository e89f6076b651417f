"""Command, model_dir, labels and output of each element of an array."""

from pathlib import Path

import pytest

from csrun.base.errors import UsageError
from csrun.jobs.request import JobOptions, JobRequest
from csrun.launch.array.array_elements import (
    ArrayElement,
    arguments_of,
    elements_of,
    parse_settings,
    request_of,
    require_own_outputs,
    with_model_dirs,
)
from csrun.launch.array.array_indices import ArrayIndices
from csrun.launch.array.earlier_runs import require_same_values
from csrun.launch.user_command import UserCommand

SPEC = ArrayIndices((2, 5))
COMMAND = UserCommand(("python-ws", "run.py", "--params", "params_%a.yaml"))


def test_values_go_together_by_place_and_one_is_for_all() -> None:
    settings = parse_settings(["a.b=1,2", "c=[1,2],[3]", "d=x%a"], SPEC)
    first, second = elements_of(COMMAND, SPEC, settings, takes_params=True)
    assert first.values == {"a.b": "1", "c": "[1,2]", "d": "x2"}
    assert second.values == {"a.b": "2", "c": "[3]", "d": "x5"}
    assert second.command == (
        "python-ws", "run.py", "--params", "params_5.yaml",
        "--set", "a.b=2", "--set", "c=[3]", "--set", "d=x5",
    )  # fmt: skip


def test_a_launcher_of_one_element_repeats_its_run() -> None:
    element = ArrayElement(2, {"a": "1"}, ("python-ws", "run.py", "--set", "a=1"), None)
    command = ("python-ws", "run.py", "--array", "x")
    given = ("--array", "1-2", "--set=a=1,2", "--total-nodes", "3", "--array=1-2", *command)
    found = arguments_of(element, given, command)
    assert found == ("--total-nodes", "3", *element.command)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a=1,2,3"], "--set a: has 3 values, --array 2 elements"),
        (["a=1,"], "--set a: a value is missing in '1,'"),
        (["a=1", "a=2"], "--set a: is given twice"),
        (["a"], "--set: must be KEY=VALUE"),
    ],
)
def test_wrong_values_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_settings(words, SPEC)


def test_values_of_another_command_are_refused() -> None:
    settings = parse_settings(["a=1,2"], SPEC)
    with pytest.raises(UsageError, match=r"only scripts that call csrun\.params\.run"):
        elements_of(UserCommand(("true",)), SPEC, settings, takes_params=False)


def test_one_model_dir_for_all_is_refused() -> None:
    command = UserCommand(("python", "loop.py", "--model_dir", "runs"))
    with pytest.raises(UsageError, match=r"--model_dir runs: all elements .*: write runs/%a"):
        elements_of(command, SPEC, (), takes_params=False)
    other = UserCommand(("tar", "-o", "x", "-o", "runs"))  # its own option
    assert [each.model_dir for each in elements_of(other, SPEC, (), takes_params=False)] == [
        None
    ] * 2


def test_each_has_a_model_dir_of_its_own() -> None:
    elements = elements_of(COMMAND, SPEC, (), takes_params=True)
    found = with_model_dirs(elements, COMMAND, ["runs/a", None])
    assert [each.model_dir for each in found] == ["runs/a/array_2", None]
    assert found[0].command[-2:] == ("--model_dir", "runs/a/array_2")
    assert found[1].command == elements[1].command


def test_a_model_dir_by_index_or_by_set_stays() -> None:
    command = UserCommand(("python-ws", "run.py", "--model_dir=runs/%a"))
    elements = elements_of(command, SPEC, (), takes_params=True)
    assert [each.model_dir for each in elements] == ["runs/2", "runs/5"]
    assert with_model_dirs(elements, command, ["runs/2", "runs/5"]) == elements
    settings = parse_settings(["runconfig.model_dir=a,b"], SPEC)
    elements = elements_of(COMMAND, SPEC, settings, takes_params=True)
    found = with_model_dirs(elements, COMMAND, ["a", "b"])
    assert [each.model_dir for each in found] == ["a", "b"]
    assert [each.command for each in found] == [each.command for each in elements]


def test_labels_and_output() -> None:
    request = JobRequest(
        COMMAND.words, options=JobOptions(output="o_%A_%a_%j", labels={"team": "ml"})
    )
    found = request_of(request, ArrayElement(5, {}, ("true",)), 7)
    assert found.command == ("true",)
    assert found.options.labels == {"team": "ml", "array": "7", "array-index": "5"}
    assert found.options.output == "o_7_5_%j"


def test_one_output_for_all_is_refused() -> None:
    for pattern in (None, "%j.out", "out_%a"):
        require_own_outputs(pattern)
    with pytest.raises(UsageError, match=r"--output out: all elements .* would write to it"):
        require_own_outputs("out")


def test_a_model_dir_of_other_values_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "params_train.yaml").write_text(
        "optimizer: {learning_rate: 0.1}\nmodel: {sizes: [1, 2]}\nrunconfig: {max_steps: 5}\n"
    )

    def element(**values: str) -> list[ArrayElement]:
        named = {key.replace("__", "."): value for key, value in values.items()}
        return [ArrayElement(1, named, (), str(tmp_path))]

    require_same_values(element(optimizer__learning_rate="1e-1", model__sizes="[1, 2]"))
    require_same_values(element(runconfig__max_steps="9"))
    with pytest.raises(UsageError, match=r"trained with optimizer.learning_rate = 0\.1, --set"):
        require_same_values(element(optimizer__learning_rate="0.2"))
    with pytest.raises(UsageError, match=r"trained with model\.sizes = 2, --set says \[1, 3\]"):
        require_same_values(element(model__sizes="[1, 3]"))
