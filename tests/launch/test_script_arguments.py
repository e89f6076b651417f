import sys
from pathlib import Path
from typing import Any

import pytest

from csrun.base.errors import UsageError
from csrun.base.run_config import Params
from csrun.launch.script_arguments import check_arguments
from csrun.launch.user_command import UserCommand
from csrun.params.command_line import parse

RUN = "from csrun.params import main_for, run\n"
SCRIPTS = {
    "no schema": RUN + "run(main_for(None, None))\n",
    "a schema beside it": RUN + "from params import Params\nrun(main_for(None, None), Params, 1)\n",
    "a section of its own": RUN + "from own import Params\nrun(main_for(None, None), Params)\n",
    "another parser": "import argparse\n",
}
SCHEMAS = {
    "params.py": "from csrun.params import RunConfig\nclass Params:\n    runconfig: RunConfig\n",
    "own.py": "from csrun.params import RunConfig\nclass Mine(RunConfig):\n    max_stepz: int = 1\n"
    "class Params:\n    runconfig: Mine\n",
}
REFUSED = ("no schema", "a schema beside it")


@pytest.fixture(params=SCRIPTS)
def script(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, text in SCHEMAS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "run.py").write_text(SCRIPTS[request.param])
    (tmp_path / "typo.yaml").write_text("model: {a: 1}\nrunconfig: {max_stepz: 3}\n")
    (tmp_path / "good.yaml").write_text(
        "model: {a: 1}\nrunconfig: {max_steps: 3, precision_opt_level: 1}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    return str(request.param)


def message(call: Any, *arguments: Any) -> str | None:
    try:
        call(*arguments)
    except UsageError as error:
        return str(error)
    return None


@pytest.mark.parametrize("words", [("--params", "typo.yaml"), ("-ptypo.yaml",)])
def test_a_misspelt_key_is_refused_where_no_schema_has_it(script: str, words: Any) -> None:
    said = message(check_arguments, UserCommand(("python-ws", "run.py", *words)))
    expected = "typo.yaml: runconfig.max_stepz: unknown key; did you mean max_steps?"
    assert said == (expected if script in REFUSED else None)


def test_a_wrong_mode_is_refused_in_the_words_of_the_task(script: str) -> None:
    words = ("--mode", "train", "-mtrian")
    said = message(check_arguments, UserCommand(("python-ws", "run.py", *words)))
    of_task = message(parse, Params, None, words)
    assert str(of_task).endswith("did you mean train?")
    assert said == (None if script == "another parser" else of_task)


@pytest.mark.parametrize(
    "words",
    [(), ("-p", "good.yaml", "-m", "EVAL"), ("-p", "none.yaml"), ("-mtrain",), ("--mode=eval",)],
)
def test_what_a_task_takes_is_taken(script: str, words: Any) -> None:
    check_arguments(UserCommand(("python-ws", "run.py", *words)))
    check_arguments(UserCommand(("bash", "run.py", "--mode", "trian")))
