"""Command line and params file of a run.py: values, precedence, and every refusal."""

import os
import signal
import sys
from io import TextIOWrapper

import msgspec
import numpy as np
import pytest

from csrun import nn
from csrun.base.errors import UsageError
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig
from csrun.params import Mode, RunConfig, main_for, run
from csrun.params.command_line import parse
from csrun.params.entry_point import Params as NoParams
from csrun.params.schema import model_dirs_of


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hidden_size: int


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: Model
    runconfig: RunConfig


GOOD = "model: {hidden_size: 50}\nrunconfig: {max_steps: 10, seed: 7}\n"


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text(GOOD)
    return file


def test_the_file_gives_the_values_and_defaults_fill_the_rest(path):
    arguments = parse(Params, path, [])
    assert arguments.mode is Mode.TRAIN
    assert arguments.params.model.hidden_size == 50
    assert arguments.params.runconfig == RunConfig(max_steps=10, seed=7)


def test_the_command_line_beats_the_file(path):
    arguments = parse(
        Params, path, ["-m", "eval", "--max_steps=20", "-o", "there", "--cs_ip", "10.0.0.1:9000"]
    )
    assert arguments.mode is Mode.EVAL
    runconfig = arguments.params.runconfig
    assert (runconfig.max_steps, runconfig.model_dir) == (20, "there")
    assert runconfig.cs_ip == "10.0.0.1:9000"
    assert runconfig.seed == 7


@pytest.mark.parametrize(
    ("option", "limits"), [("--max_steps", (None, 10)), ("--steps", (10, None))]
)
@pytest.mark.parametrize("in_file", ["steps: 30", "max_steps: 30", "steps: 30, max_steps: 40"])
def test_a_limit_of_the_command_line_drops_the_files(path, option, limits, in_file):
    path.write_text(f"model: {{hidden_size: 50}}\nrunconfig: {{{in_file}}}\n")
    runconfig = parse(Params, path, [option, "10"]).params.runconfig
    assert (runconfig.steps, runconfig.max_steps) == limits


def test_any_key_is_set_and_options_come_first(path):
    words = ["--set", "model.hidden_size=64", "--set", "runconfig.seed=9"]
    params = parse(Params, path, [*words, "--set=runconfig.max_steps=5", "--max_steps", "6"]).params
    assert params.model.hidden_size == 64
    assert (params.runconfig.seed, params.runconfig.max_steps) == (9, 6)
    mapping = {"model": {"hidden_size": 1}}
    assert parse(Params, mapping, words).params.model.hidden_size == 64
    assert mapping == {"model": {"hidden_size": 1}}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "model.hidden_siz=1",
            r"params.yaml with --set: model\.hidden_siz: unknown key; did you mean hidden_size",
        ),
        ("model.hidden_size=x", r"model\.hidden_size: must be a whole number, got 'x'"),
        ("model.hidden_size.a=1", r"--set model\.hidden_size\.a: model\.hidden_size is a value"),
        ("model", "--set: must be KEY=VALUE"),
    ],
)
def test_a_wrong_setting_is_refused(path, word, message):
    with pytest.raises(UsageError, match=message):
        parse(Params, path, ["--set", word])


def test_model_dirs_of_command_lines_are_those_of_the_script(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "from csrun.params import run\n"
        "run(print, default_params={'runconfig': {'model_dir': 'd'}})\n"
    )
    lines = [(), ("--model_dir", "e"), ("--set", "runconfig.model_dir=f")]
    assert model_dirs_of(script, lines) == ["d", "e", "f"]
    with pytest.raises(UsageError, match=r"run\.py with --set: runconfig\.see: unknown key"):
        model_dirs_of(script, [("--set", "runconfig.see=1")])


def test_systems_are_asked_for_by_the_command_line_or_the_file(path):
    assert parse(Params, path, ["--num_csx", "1"]) == parse(Params, path, [])
    assert parse(Params, path, ["--num_csx", "2"]).params.runconfig.num_csx == 2
    path.write_text("model: {hidden_size: 1}\nrunconfig: {num_csx: 4}\n")
    assert parse(Params, path, []).params.runconfig.num_csx == 4


def test_memoryx_tasks_are_told_by_the_command_line_or_the_file(path):
    assert parse(Params, path, []).params.runconfig.num_wgt_servers is None
    path.write_text("model: {hidden_size: 1}\nrunconfig: {num_wgt_servers: 2}\n")
    assert parse(Params, path, []).params.runconfig.num_wgt_servers == 2
    asked = parse(Params, path, ["--num_wgt_servers", "3"])
    assert asked.params.runconfig.num_wgt_servers == 3


def test_replicas_are_asked_for_by_the_command_line_or_the_file(path):
    assert not parse(Params, path, []).params.runconfig.multireplica
    assert parse(Params, path, ["--multireplica"]).params.runconfig.multireplica
    path.write_text("model: {hidden_size: 1}\nrunconfig: {multireplica: true}\n")
    assert parse(Params, path, []).params.runconfig.multireplica


@pytest.mark.parametrize("mode", ["train", "eval", "predict"])
def test_a_checkpoint_is_given_where_it_means_something(path, mode):
    arguments = parse(Params, path, ["--mode", mode, "--checkpoint_path", "there"])
    assert arguments.params.runconfig.checkpoint_path == "there"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--compile_only"],
        ["--mode=compile_only"],
        ["--mode", "train", "--compile_only"],
        ["--compile-only"],
        ["-m", "compile-only"],
        ["-m", "Compile_Only"],
    ],
)
def test_all_spellings_of_compile_only(path, arguments):
    assert parse(Params, path, arguments).mode is Mode.COMPILE_ONLY


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model: {hidden_size: fifty}\nrunconfig: {}",
            "model.hidden_size: must be a whole number",
        ),
        ("model: {hidden_sise: 5}\nrunconfig: {}", "model.hidden_sise: unknown key; did you mean"),
        ("runconfig: {}", "missing required field"),
        ("model: [1", "not YAML"),
        ("- 1", "must be a mapping of sections, got a list"),
        ("hello", "must be a mapping of sections, got a single value"),
        ("", "must be a mapping of sections, got an empty file"),
        ("model: {hidden_size: 1}\nrunconfig: {max_steps: 0}", "runconfig.max_steps"),
        ("model: {hidden_size: 1}\nrunconfig: {seed: -1}", "runconfig.seed: "),
        ("model: {hidden_size: 1}\nrunconfig: {log_steps: 0}", "whole number >= 1, got 0"),
        ("model: {hidden_size: 1}\nnetwork: {}\nrunconfig: {}", "network: unknown key"),
        (
            "model: {hidden_size: 1}\nrunconfig: {precision: float46}",
            "runconfig.precision: must be one of float32, float64, mixed_bfloat16, ",
        ),
        (
            "model: {hidden_size: 1}\nrunconfig: {precision: float16}",
            "got 'float16': arithmetic is float32; store 16 bits by mixed_float16",
        ),
        (
            "model: {hidden_size: 1}\nrunconfig: {cb16_exponent_bias: 63}",
            "runconfig.cb16_exponent_bias: must be a whole number >= 1 and <= 62, got 63",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_key_and_value(path, text, message):
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        parse(Params, path, [])
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max_step", "3"], "Did you mean"),
        (
            ["--mode", "trian"],
            "validate_only, got 'trian'; did you mean train?",
        ),
        (["--max_steps", "many"], "'--max_steps': must be a whole number >= 1, got many"),
        (["--max_steps", "0"], "'--max_steps': must be a whole number >= 1, got 0"),
        (["--steps=-1"], "'--steps': must be a whole number >= 1, got -1"),
        (["--eval_steps", "1e3"], "'--eval_steps': must be a whole number >= 1, got 1e3"),
        (["-o", ""], "'--model_dir': must not be empty; is a shell variable unset?"),
        (["--cs_ip="], "'--cs_ip': must not be empty"),
        (["--num_csx", "0"], "'--num_csx': must be a whole number >= 1, got 0"),
        (
            ["-m", "eval", "--compile_only"],
            "--compile_only compiles for training and cannot be combined",
        ),
        (["--compile_only", "--validate_only"], "give validate_only or compile_only, not both"),
        (["-m", "compile_only", "--validate_only"], "not both"),
        (["-m", "predict", "--validate_only"], "--validate_only compiles for training and cannot"),
        (
            ["--steps=3", "--max_steps=4"],
            "give --steps or --max_steps, not both: got --steps 3 and",
        ),
        (["-m", "eval_all", "--checkpoint_path=c"], "has no effect with --mode eval_all, got c"),
        (["-m", "train_and_eval", "--checkpoint_path=c"], "no effect with --mode train_and_eval"),
        (["stray"], "unexpected extra argument"),
        (["-p", "nowhere.yaml"], "nowhere.yaml: cannot be read: No such file"),
    ],
)
def test_a_wrong_command_line_is_refused(path, arguments, message):
    with pytest.raises(UsageError) as caught:
        parse(Params, path, arguments)
    assert message in str(caught.value)


def test_half_arithmetic_is_refused_in_python_too():
    with pytest.raises(UsageError, match="got bfloat16: arithmetic is float32; store 16 bits by"):
        CSRunConfig(precision="bfloat16")


def test_a_script_needs_no_params_file_and_no_schema():
    own = {"runconfig": {"max_steps": 30, "seed": 7}}
    assert parse(NoParams, own, []).params.runconfig == RunConfig(max_steps=30, seed=7)
    given = parse(NoParams, own, ["--steps", "4", "-o", "there"]).params.runconfig
    assert given == RunConfig(steps=4, seed=7, model_dir="there")
    assert own == {"runconfig": {"max_steps": 30, "seed": 7}}
    assert parse(NoParams, None, ["--mode", "eval"]).params == NoParams()


def test_a_params_file_takes_the_place_of_the_scripts_own(path):
    own = {"model": {"hidden_size": 3}, "runconfig": {"max_steps": 30}}
    assert parse(Params, own, []).params.model.hidden_size == 3
    assert parse(Params, own, ["-p", str(path)]) == parse(Params, path, [])


def test_a_scripts_own_params_are_checked_as_a_file_is(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/run.py"])
    with pytest.raises(UsageError, match=r"^run.py: runconfig.max_step: unknown key; did you mean"):
        parse(NoParams, {"runconfig": {"max_step": 30}}, [])


FEATURES = np.random.default_rng(1).standard_normal((32, 4)).astype(np.float32)
LABELS = (FEATURES[:, 0] > 0).astype(np.int32)


def train_input(params):
    return Dataset.from_arrays(FEATURES, LABELS).repeat().batch(8)


def eval_input(params):
    return Dataset.from_arrays(FEATURES, LABELS).batch(8)


def model(features, labels, mode, params):
    logits = nn.Dense(2, name="out")(features)
    predictions = {"side": nn.argmax(logits)}
    if mode == nn.PREDICT:
        return CSEstimatorSpec(mode, predictions=predictions)
    loss = nn.softmax_cross_entropy(logits, labels)
    return CSEstimatorSpec(mode, loss=loss, train_op=nn.SGD(0.1).minimize(loss))


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Run a script of the model with a command line, in its own folder."""
    monkeypatch.chdir(tmp_path)

    def script(*arguments, eval_input=eval_input):
        monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
        own = {"runconfig": {"max_steps": 6, "save_checkpoints_steps": 3}}
        run(main_for(model, train_input, eval_input), default_params=own)
        return sorted(path.name for path in (tmp_path / "model_dir").glob("*.safetensors"))

    return script


def test_one_main_does_what_every_mode_says(script, capsys, caplog):
    caplog.set_level("INFO", "csrun")
    assert script("--mode", "validate_only") == []
    assert script("--compile_only") == []
    assert script() == [f"model-ckpt-{step}.safetensors" for step in (0, 3, 6)]
    script("--mode", "eval")
    script("--mode", "eval_all")
    saved = [line for line in caplog.messages if line.startswith("Saving dict for global step 6: ")]
    assert len(saved) == 2  # eval, and the newest of eval_all
    script("--mode", "predict")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"sample {n}" for n in range(32)]
    assert {line.split(": ")[1] for line in lines} <= {"0", "1"}
    assert "model-ckpt-9.safetensors" in script("--mode", "train_and_eval", "--max_steps", "9")


NO_SPACE = "error: standard output: No space left on device\n"


def full():
    return os.open("/dev/full", os.O_WRONLY)


def unread():
    read_end, write_end = os.pipe()
    os.close(read_end)
    return write_end


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    ("output", "lines", "code", "said"),
    [
        (full, 1, 1, NO_SPACE),
        (full, 500, 1, NO_SPACE),
        (unread, 1, 128 + signal.SIGPIPE, ""),
        (unread, 9_000, 128 + signal.SIGPIPE, ""),
    ],
)
def test_an_output_that_takes_no_more_ends_a_script_without_a_traceback(
    output, lines, code, said, buffered, capsys, monkeypatch
):
    samples = [{"side": np.zeros(1)}] * lines
    monkeypatch.setattr(CerebrasEstimator, "predict", lambda *_: iter(samples))
    monkeypatch.setattr(sys, "argv", ["run.py", "--mode", "predict"])
    with open(output(), "wb", -1 if buffered else 0) as raw, pytest.raises(SystemExit) as ended:
        stdout = TextIOWrapper(raw, write_through=not buffered)
        monkeypatch.setattr(sys, "stdout", stdout)
        run(main_for(model, train_input, eval_input), default_params={"runconfig": {}})
    assert (ended.value.code, capsys.readouterr().err) == (code, said)


def test_ctrl_c_has_its_exit_code_where_the_output_is_unread(monkeypatch):
    def main(arguments):
        print("a line in the buffer")
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["run.py"])
    with open(unread(), "w") as stdout, pytest.raises(SystemExit) as ended:
        monkeypatch.setattr(sys, "stdout", stdout)
        run(main, default_params={"runconfig": {}})
    assert ended.value.code == 128 + signal.SIGINT
    stdout.close()  # as at the interpreter's exit


def test_a_script_without_data_to_evaluate_says_so(script, capsys):
    with pytest.raises(SystemExit) as ended:
        script("--mode", "eval", eval_input=None)
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "error: --mode eval: this script passes no eval_input_fn to main_for\n"
    )
