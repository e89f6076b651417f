"""csrun params: effective params and errors, without a run."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from support.fc_mnist import FOLDER

from csrun.base.errors import UsageError
from csrun.cli.csrun import csrun
from csrun.params.entry_point import run as enter
from csrun.params.schema import schema_of

SHIPPED = FOLDER / "configs" / "params.yaml"
RUN = FOLDER / "run.py"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(csrun, ["params", *map(str, words)], standalone_mode=False)


def changed(tmp_path: Path, old: str, new: str, name: str = "params.yaml") -> Path:
    text = SHIPPED.read_text()
    assert old in text
    path = tmp_path / name
    path.write_text(text.replace(old, new))
    return path


def test_a_good_file(tmp_path: Path) -> None:
    done = run("validate", SHIPPED, "--script", RUN)
    assert (done.return_value, done.output) == (0, f"{SHIPPED}: valid\n")


def test_an_unknown_key_has_a_guess(tmp_path: Path) -> None:
    wrong = changed(tmp_path, "max_steps", "max_step")
    done = run("validate", SHIPPED, wrong)
    assert done.return_value == 2
    only = "valid runconfig; --script RUN.py checks eval_input, model, optimizer, train_input"
    assert f"{SHIPPED}: {only}\n" in done.output
    assert "runconfig.max_step: unknown key; did you mean max_steps?" in done.output


def test_other_sections_are_those_of_the_script(tmp_path: Path) -> None:
    wrong = changed(tmp_path, "hidden_sizes", "hiden_sizes")
    assert run("validate", wrong).return_value == 0
    done = run("validate", wrong, "--script", RUN)
    assert done.return_value == 2
    assert "model.hiden_sizes: unknown key; did you mean hidden_sizes?" in done.output


def test_what_a_run_would_use_has_defaults() -> None:
    shown = yaml.safe_load(run("show", SHIPPED).output)
    given = yaml.safe_load(SHIPPED.read_text())
    assert shown["model"] == given["model"]
    assert shown["runconfig"] | given["runconfig"] == shown["runconfig"]
    assert shown["runconfig"]["precision"] == "float32"
    own = json.loads(run("show", SHIPPED, "--script", RUN, "-o", "json").output)
    assert own["runconfig"] == shown["runconfig"]


def test_a_script_without_params_is_not_run(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    done = run("validate", SHIPPED, "--script", script)
    assert "does not call csrun.params.run" in str(done.exception)
    assert not (tmp_path / "ran").exists()


def test_several_files_are_several_documents(tmp_path: Path) -> None:
    other = changed(tmp_path, "log_steps: 500", "log_steps: 7")
    shown = [*yaml.safe_load_all(run("show", SHIPPED, other).output)]
    assert [each["runconfig"]["log_steps"] for each in shown] == [500, 7]


def test_files_are_compared_with_their_defaults(tmp_path: Path) -> None:
    more = changed(tmp_path, "runconfig:", "runconfig:\n  threads: 7")
    done = run("diff", SHIPPED, more, "-o", "json")
    assert done.return_value == 1
    assert json.loads(done.output) == [{"key": "runconfig.threads", "first": "None", "second": "7"}]
    done = run("diff", SHIPPED, SHIPPED)
    assert (done.return_value, done.output) == (0, "no differences\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("print('nothing')", "does not call csrun.params.run"),
        ("import sys; sys.exit(3)", "ended with 3 before csrun.params.run"),
    ],
)
def test_a_script_whose_params_are_unknown(tmp_path: Path, text: str, problem: str) -> None:
    script = tmp_path / "run.py"
    script.write_text(text)
    with pytest.raises(UsageError, match=problem):
        schema_of(script)
    with pytest.raises(UsageError, match="no such file"):
        schema_of(tmp_path / "none.py")


def test_a_script_is_run_again_after_it_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema_of(RUN)
    entered = []
    monkeypatch.setattr("sys.argv", ["run.py"])
    enter(entered.append)
    assert len(entered) == 1
