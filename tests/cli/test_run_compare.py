"""Arguments of csrun compare: model_dirs, or commands."""

from pathlib import Path

import pytest

from csrun.cli import csrun, frame

COMMAND, LONG = "python-ws run.py -m train", f"python-ws run.py {'-p x ' * 1000}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my model", "."], "my model: no such folder"),
        ([COMMAND, COMMAND], f"{COMMAND}: no such folder"),
        ([LONG, "."], "no such folder"),
        (["--operators", "model", "."], "model: no such folder"),
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
