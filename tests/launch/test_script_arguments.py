import sys
from pathlib import Path
from typing import Any

import pytest

from csrun.base.errors import UsageError
from csrun.base.run_config import Params
from csrun.launch.script_arguments import check_arguments
from csrun.launch.script_imports import sections_of
from csrun.launch.user_command import UserCommand
from csrun.params.command_line import parse

REFERENCE_MODELS = Path(__file__).parents[2] / "reference_models"
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
    [
        ("--max_step", "10"),
        ("--max_steps", "-3"),
        ("--steps=1", "--max-steps=2"),
        ("--set", "no value"),
        ("--compile_only", "--mode", "eval"),
    ],
)
def test_a_wrong_option_is_refused_in_the_words_of_the_task(script: str, words: Any) -> None:
    said = message(check_arguments, UserCommand(("python-ws", "run.py", *words)))
    of_task = message(parse, Params, None, words)
    assert of_task is not None
    assert said == (None if script == "another parser" else of_task)


def test_a_setting_of_an_unknown_key_is_refused_where_no_schema_has_it(script: str) -> None:
    command = UserCommand(("python-ws", "run.py", "--set", "runconfig.max_stepz=3"))
    expected = "--set: runconfig.max_stepz: unknown key; did you mean max_steps?"
    assert message(check_arguments, command) == (expected if script in REFUSED else None)


@pytest.mark.parametrize(
    ("line", "folders"),
    [
        ("import sys\nsys.argv[1:] = []", ()),
        ("from sys import argv", ()),
        ("import own_parser", ("own_parser",)),
    ],
)
def test_a_script_that_may_take_words_away_is_left_to_its_tasks(
    line: str, folders: tuple[str, ...], tmp_path: Path
) -> None:
    for each in folders:
        (tmp_path / each).mkdir()
    path = tmp_path / "run.py"
    path.write_text(f"{RUN}{line}\nrun(main_for(None, None))\n")
    assert message(check_arguments, UserCommand(("python-ws", str(path), "--mine"))) is None


PARSER = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--max_steps')\n"


@pytest.mark.parametrize(
    ("lines", "words", "refused"),
    [
        ("p.parse_args()", ("--max_stepz", "3"), True),
        ("p.parse_args()", ("--max_stepz=3",), True),
        ("p.parse_args()", ("--max_step", "3"), False),  # first letters
        ("p.parse_args()", ("--", "--max_stepz"), False),
        ("p.parse_args()", ("--help",), False),
        ("p.parse_known_args()", ("--max_stepz",), False),
        ("p.parse_args([])", ("--max_stepz",), False),
        ("p.add_argument('--x', action=argparse.BooleanOptionalAction)\np.parse_args()",
         ("--no-x",), False),
        ("p.add_argument('rest', nargs=argparse.REMAINDER)\np.parse_args()",
         ("a", "--max_stepz"), False),
    ],
)  # fmt: skip
def test_an_option_that_argparse_would_refuse(
    lines: str, words: tuple[str, ...], refused: bool, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(PARSER + lines)
    said = message(check_arguments, UserCommand(("python-pt", str(path), *words)))
    expected = "train.py: no such option '--max_stepz'; did you mean --max_steps?"
    assert said == (expected if refused else None)


@pytest.mark.parametrize(
    "words",
    [(), ("-p", "good.yaml", "-m", "EVAL"), ("-p", "none.yaml"), ("-mtrain",), ("--mode=eval",)],
)
def test_what_a_task_takes_is_taken(script: str, words: Any) -> None:
    check_arguments(UserCommand(("python-ws", "run.py", *words)))
    check_arguments(UserCommand(("bash", "run.py", "--mode", "trian")))


VALUED = """
p.add_argument("--layers", type=int)
p.add_argument("--rate", "-r", type=float)
p.add_argument("--optimizer", choices=["sgd", "adam"])
p.add_argument("--sizes", type=int, nargs="+")
p.add_argument("--path", type=open)
p.parse_args()
"""


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("--layers", "3"), ""),
        (("--layers", "-3"), ""),
        (("--layers", "three"), "'--layers': must be a whole number, got 'three'"),
        (("--layers=1e3",), "'--layers': must be a whole number, got '1e3'"),
        (("--rate", "1e-3"), ""),
        (("--rate=fast",), "'--rate': must be a number, got 'fast'"),
        (("--optimizer", "adam"), ""),
        (
            ("--optimizer=adm",),
            "'--optimizer': must be one of sgd, adam, got 'adm'; did you mean adam?",
        ),
        (("--sizes", "1", "b"), ""),  # argparse's: not looked at
        (("--path", "none"), ""),
        (("--layers",), ""),
    ],
)
def test_a_value_that_argparse_would_refuse(
    words: tuple[str, ...], refused: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(PARSER + VALUED)
    said = message(check_arguments, UserCommand(("python-pt", str(path), *words)))
    assert said == (f"train.py: invalid value for {refused}" if refused else None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("fromfile_prefix_chars='@'", ("--layers", "@layers.txt")),
        ("prefix_chars='+'", ("--layers", "three")),
        ("prefix_chars='+'", ("--any",)),
    ],
)
def test_values_of_other_forms_are_left_to_argparse(
    options: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    parser = PARSER.replace("ArgumentParser()", f"ArgumentParser({options})")
    assert options in parser
    path.write_text(parser + VALUED)
    check_arguments(UserCommand(("python-pt", str(path), *words)))


STRUCT = """
import msgspec
from csrun.params import RunConfig
class Params(msgspec.Struct{options}):
    data: dict{field}
    runconfig: RunConfig
    def method(self): ...
"""


@pytest.mark.parametrize(
    ("options", "field", "refused"),
    [
        ("", "", True),
        (", frozen=True", "", True),
        (", rename='kebab'", "", False),
        (", Mixin", "", False),
        ("", " = msgspec.field(name='dta')", False),
        ("", " = msgspec.field(default_factory=dict)", True),
    ],
)
@pytest.mark.parametrize("words", [("-p", "x.yaml"), ("--set", "dta.a=1")])
def test_a_section_that_the_schema_does_not_declare(
    options: str, field: str, refused: bool, words: tuple[str, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("params.py").write_text(STRUCT.format(options=options, field=field))
    Path("run.py").write_text(
        RUN + "from params import Params\nrun(main_for(None, None), Params, 1)"
    )
    Path("x.yaml").write_text("csconfig: {use_cbfloat16: false}\nmodel: {}\ndta: {a: 1}\n")
    said = message(check_arguments, UserCommand(("python-ws", "run.py", *words)))
    where = "x.yaml" if words[0] == "-p" else "--set"
    expected = f"{where}: dta: unknown key; did you mean data?"
    assert said == (expected if refused else None)


def test_the_sections_of_the_reference_models_are_known() -> None:
    for script in sorted(REFERENCE_MODELS.glob("*/run.py")):
        params = [*(script.parent / "configs").glob("params*.yaml")]
        assert sections_of(str(script)) is not None
        for each in params:
            check_arguments(UserCommand(("python-ws", str(script), "-p", str(each))))
