"""Arguments of csrun compare: model_dirs, or commands."""

from pathlib import Path

import pytest

from csrun.advice.operator_comparison import OperatorComparison
from csrun.cli import csrun, frame
from csrun.cli.run_compare import _of_operators
from csrun.records import model_dir
from csrun.records.events import EventWriter

COMMAND, LONG = "python-ws run.py -m train", f"python-ws run.py {'-p x ' * 1000}"

ERROR = "sh -c 'echo csrun_wse: error; echo NameError: x; echo log: /a/rank-0.log; exit 1'"
FULL = "sh -c 'echo OSError: [Errno 28] No space left on device; exit 1'"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model", "."], "model: no such folder"),
        (["my model", "."], "my model: no such model_dir; name two model_dirs, or two commands"),
        (["false x", "false x"], "error: false x: failed: exit code 1: it printed nothing"),
        ([ERROR, ERROR], "exit code 1: NameError: x; log: /a/rank-0.log\n"),
        (["true x", "true x"], "true x: recorded no value: ended before its first step"),
        ([FULL, FULL], "no space left for its values in "),
        (["nopy x", "nopy x"], "error: nopy x: failed: nopy in "),
        (["--operators", "model", "."], "model: no such folder"),
        (["--against", "torch", "model"], "model: no such folder"),
        (["--operators", COMMAND, "."], f"{COMMAND}: no such model_dir; name two model_dirs, or"),
        (["--operators", ".", LONG], "no such model_dir; name two model_dirs, or two commands"),
        (["--operators", __file__, "."], f"'{__file__}' is a file"),
        (["."], "name two trainings, or one and --against torch"),
    ],
)
def test_runs_that_are_not_there(
    arguments: list[str], message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert frame.run(csrun.csrun, ["compare", *arguments]) == 2
    assert message in capsys.readouterr().err


def trained(folder: Path, **optimizer: float) -> str:
    folder.mkdir()
    writer = EventWriter(folder)
    writer.scalars({"loss": 2.0}, 1)
    writer.close()
    model_dir.write_params(folder, "train", {"optimizer": optimizer, "runconfig": {"seed": 1}})
    return str(folder)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ([], ["train: optimizer.rate 0.1 0.2", "train: optimizer: 4 keys (not set) set"]),
        (["--all"], ["train: optimizer.rate 0.1 0.2", "train: optimizer.b (not set) 1",
                     "train: optimizer.c (not set) 1", "train: optimizer.d (not set) 1",
                     "train: optimizer.e (not set) 1", "train: runconfig.seed 1 1"]),
    ],
)  # fmt: skip
def test_what_is_equal_is_counted_and_keys_of_one_run_are_one_row(
    options: list[str], rows: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = trained(tmp_path / "a", rate=0.1)
    second = trained(tmp_path / "b", rate=0.2, b=1, c=1, d=1, e=1)
    assert frame.run(csrun.csrun, ["compare", *options, first, second]) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line.startswith("train: ")] == rows
    assert "parameters: 5 of 6 differ" in lines
    without = "; ".join(f"no valid checkpoint in {run}" for run in (first, second))
    assert f"identity: none of 0 differ; {without}" in lines


def test_steps_that_one_run_alone_has_logged_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = trained(tmp_path / "a"), trained(tmp_path / "b")
    writer = EventWriter(Path(second))
    writer.scalars({"loss": 1.5}, 2)
    writer.close()
    assert frame.run(csrun.csrun, ["compare", first, second]) == 0
    losses = "losses: 1 step with identical bits; 1 step only in B"
    assert losses in capsys.readouterr().out.splitlines()


def test_counts_are_in_the_singular_and_values_of_one_run_are_named() -> None:
    found = OperatorComparison(None, 1, 1, 1, 4, 0, 0, 0, None, ("a", "b", "c"))
    assert _of_operators(found, ("not in PyTorch", "only in PyTorch")) == [
        "operators: 1 value bitwise identical, step 1 from the initial weights (4 not in PyTorch)",
        "not in PyTorch: a, b, c and 1 more",
    ]
