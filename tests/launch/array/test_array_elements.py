"""Command, model_dir, labels and output of each element of an array."""

from pathlib import Path

import pytest
import yaml

from csrun.base.errors import UsageError
from csrun.jobs.request import JobOptions, JobRequest
from csrun.launch.array.array_elements import (
    ArrayElement,
    ArrayScript,
    arguments_of,
    elements_of,
    parse_settings,
    request_of,
    require_own_outputs,
    with_model_dirs,
)
from csrun.launch.array.array_indices import ArrayIndices
from csrun.launch.array.earlier_runs import require_same_values
from csrun.launch.array.element_params import require_params, with_params_files
from csrun.launch.user_command import UserCommand

SPEC = ArrayIndices((2, 5))
PARAMS_RUN = ArrayScript(takes_set=True)
LOOP = ArrayScript(has_options=True)
COMMAND = UserCommand(("python-ws", "run.py", "--params", "params_%a.yaml"))


def test_values_go_together_by_place_and_one_is_for_all() -> None:
    settings = parse_settings(["a.b=1,2", "c=[1,2],[3]", "d=x%a"], SPEC)
    first, second = elements_of(COMMAND, SPEC, settings, PARAMS_RUN)
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
        (["a=1,"], "--set a: '1,' has an empty value"),
        (["a=1", "a=2"], "--set a: is given twice"),
        (["a"], "--set: must be KEY=VALUE"),
    ],
)
def test_wrong_values_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_settings(words, SPEC)


def test_values_of_another_command_are_refused() -> None:
    settings = parse_settings(["a=1,2"], SPEC)
    with pytest.raises(UsageError, match=r"--set needs a script run by python"):
        elements_of(UserCommand(("true",)), SPEC, settings, ArrayScript())


def test_options_of_a_script_with_its_own_parser(tmp_path: Path) -> None:
    (tmp_path / "args.py").write_text(
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('-l', '--learning-rate', type=float)\n"
        "parser.add_argument('--seed', type=int)\n"
    )
    path = tmp_path / "loop.py"
    path.write_text("import args\nparser.add_argument('-o', '--model_dir', default='runs')\n")
    script, words = ArrayScript.of(str(path)), ("python-pt", "loop.py", "--model_dir", "runs/%a")
    settings = parse_settings(["learning_rate=-1,2e-3", "seed=%a"], SPEC)
    found = [e.command for e in elements_of(UserCommand(words), SPEC, settings, script)]
    assert found == [
        ("python-pt", "loop.py", "--model_dir", "runs/2", "--learning-rate=-1", "--seed=2"),
        ("python-pt", "loop.py", "--model_dir", "runs/5", "--learning-rate=2e-3", "--seed=5"),
    ]
    with pytest.raises(UsageError, match=r"no option --learning_rat; did you mean learning-rate"):
        elements_of(UserCommand(words), SPEC, parse_settings(["learning_rat=1"], SPEC), script)
    with pytest.raises(
        UsageError, match=r"--model_dir: all .* default, runs: add --model_dir runs/%a"
    ):
        elements_of(UserCommand(words[:2]), SPEC, settings, script)
    with pytest.raises(UsageError, match=r"--model_dir runs: several elements of the array"):
        elements_of(UserCommand(words[:2]), SPEC, parse_settings(["model_dir=runs"], SPEC), script)
    quoted = parse_settings(["model_dir='a,1',b"], SPEC)
    elements = elements_of(UserCommand(words[:2]), SPEC, quoted, script)
    assert [each.command[2] for each in elements] == ["--model_dir=a,1", "--model_dir=b"]
    assert [each.model_dir for each in elements] == ["a,1", "b"]
    for others in ("parser.parse_known_args()", "library.add_options(parser)"):
        path.write_text(f"import args\n{others}\n")
        assert ArrayScript.of(str(path)).option("width") == "--width"


def test_sections_are_those_of_the_params_file_if_there_is_one(tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text(
        "optimizer: &o {learning_rate: 1e-4, mu: 0.9}\nother: *o\nmodel: {sizes: [1, 2]}\n"
    )
    settings = parse_settings(["optimizer.learning_rate=3e-2,0.5", "model.sizes=[3]"], SPEC)
    command = UserCommand(("python-pt", "loop.py", "-p", str(params), "-o", "%a"))
    elements = elements_of(command, SPEC, settings, LOOP)
    require_params(elements)
    first, second = with_params_files(elements, tmp_path / "own")
    assert first.command == (
        "python-pt",
        "loop.py",
        "-p",
        f"{tmp_path}/own/params_2.yaml",
        "-o",
        "2",
    )
    texts = [Path(each.command[3]).read_text() for each in (first, second)]
    old = {"learning_rate": "1e-4", "mu": 0.9}  # YAML 1.1 has a text there, as PyYAML reads it
    assert yaml.safe_load(texts[0]) == {
        "optimizer": {"learning_rate": "3e-2", "mu": 0.9}, "other": old, "model": {"sizes": [3]},
    }  # fmt: skip
    assert yaml.safe_load(texts[1])["optimizer"]["learning_rate"] == 0.5
    wrong = parse_settings(["optimizer.learning_rat=1"], SPEC)
    with pytest.raises(UsageError, match=r"no key learning_rat; did you mean learning_rate"):
        require_params(elements_of(command, SPEC, wrong, LOOP))
    for value in ("[3", "#"):
        wrong_value = parse_settings([f"optimizer.mu={value}"], SPEC)
        with pytest.raises(UsageError, match=r"--set optimizer.mu: .* quote it"):
            require_params(elements_of(command, SPEC, wrong_value, LOOP))
    params.write_text("base: &b {learning_rate: 1}\noptimizer: {<<: *b, mu: 2}\n")
    rates = parse_settings(["optimizer.learning_rate=3"], SPEC)
    found = with_params_files(elements_of(command, SPEC, rates, LOOP), tmp_path / "own")
    assert yaml.safe_load(Path(found[0].command[3]).read_text())["optimizer"] == {
        "learning_rate": 3, "mu": 2,
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"no key learning_rat; did you mean learning_rate"):
        require_params(elements_of(command, SPEC, wrong, LOOP))
    bare = UserCommand(("python-pt", "loop.py"))
    assert elements_of(bare, SPEC, wrong, LOOP)[0].command[2:] == ("--optimizer.learning_rat=1",)


def test_one_model_dir_for_all_is_refused() -> None:
    command = UserCommand(("python", "loop.py", "--model_dir", "runs"))
    with pytest.raises(UsageError, match=r"--model_dir runs: several elements .*: write runs/%a"):
        elements_of(command, SPEC, (), ArrayScript())
    other = UserCommand(("tar", "-o", "x", "-o", "runs"))  # its own option
    assert [each.model_dir for each in elements_of(other, SPEC, (), ArrayScript())] == [None] * 2


def test_each_has_a_model_dir_of_its_own() -> None:
    elements = elements_of(COMMAND, SPEC, (), PARAMS_RUN)
    found = with_model_dirs(elements, COMMAND, ["runs/a", None])
    assert [each.model_dir for each in found] == ["runs/a/array_2", None]
    assert found[0].command[-2:] == ("--model_dir", "runs/a/array_2")
    assert found[1].command == elements[1].command


def test_a_model_dir_by_index_or_by_set_stays() -> None:
    command = UserCommand(("python-ws", "run.py", "--model_dir=runs/%a"))
    elements = elements_of(command, SPEC, (), PARAMS_RUN)
    assert [each.model_dir for each in elements] == ["runs/2", "runs/5"]
    assert with_model_dirs(elements, command, ["runs/2", "runs/5"]) == elements
    settings = parse_settings(["runconfig.model_dir=a,b"], SPEC)
    elements = elements_of(COMMAND, SPEC, settings, PARAMS_RUN)
    found = with_model_dirs(elements, COMMAND, ["a", "b"])
    assert [each.model_dir for each in found] == ["a", "b"]
    assert [each.command for each in found] == [each.command for each in elements]


def test_labels_and_output() -> None:
    request = JobRequest(
        COMMAND.argv, options=JobOptions(output="o_%A_%a_%j", labels={"team": "ml"})
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
