"""Modes of run.py under csrun_wse, in both execution modes; and a compile during a training."""

import re

import pytest
from support.fc_mnist import MANY_STEPS, RUN, FcMnist
from support.jobs import STALL_S, until

STREAMING = ("python-ws", ("--total-nodes", "3", "--tasks-per-node", "2", "--cpus-per-task", "1"))
PIPELINED = ("python", ("--total-nodes", "2", "--tasks-per-node", "1", "--cpus-per-task", "1"))


def said(place: FcMnist, mode, *arguments: str) -> str:
    """What a job that ends well prints."""
    interpreter, layout = mode
    done = place.wse(*arguments, layout=layout, interpreter=interpreter)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(STREAMING, id="streaming"),
        pytest.param(PIPELINED, id="pipelined", marks=pytest.mark.slow),
    ],
)
def test_every_mode_of_a_run(place: FcMnist, mode) -> None:
    place.configure(
        runconfig__max_steps=300,
        runconfig__save_checkpoints_steps=150,
        runconfig__minibatches_in_flight=None if mode is STREAMING else 4,
        runconfig__weight_store="disk" if mode is STREAMING else None,
        eval_input__batch_size=100,  # the last of 360 has 60
    )
    trained = said(place, mode, "--mode", "train_and_eval")
    assert ("Weight store: " in trained) == (mode is STREAMING)
    (accuracy,) = re.findall(r"global step 300: accuracy = ([\d.]+)", trained)
    assert float(accuracy) > 0.8
    evaluated = said(place, mode, "--mode", "eval_all")
    assert re.findall(r"global step (\d+): accuracy", evaluated) == ["0", "150", "300"]
    assert f"global step 300: accuracy = {accuracy}" in evaluated
    assert evaluated.count("Cached compilation found for this model configuration") == 3
    assert "Compiled in" not in evaluated
    predicted = re.findall(r"^sample (\d+): (\d)$", said(place, mode, "--mode", "predict"), re.M)
    assert [int(number) for number, _ in predicted] == list(range(360))
    if mode is STREAMING:  # what both modes predict of a checkpoint is what the CPU does
        on_cpu = place.cpu("--mode", "predict")
        assert re.findall(r"^sample (\d+): (\d)$", on_cpu.stdout, re.MULTILINE) == predicted


@pytest.mark.slow
def test_compiling_needs_no_system_and_training_waits_for_it(place: FcMnist) -> None:
    """While one job holds the system another compiles; a third waits until it is free."""
    place.configure(runconfig__max_steps=MANY_STEPS, runconfig__log_steps=50)
    with place.start_wse(script=place.slow_copy()) as holder:
        until(lambda: bool(list(place.path.glob("model_dir/model-ckpt-0.json"))))
        compiled = said(place, STREAMING, "--mode=compile_only", "--model_dir", "other")
        assert "Compiled in" in compiled
        assert list(place.path.glob("other/tfcs_*/program.py"))
        with place.start_wse("--model_dir", "other", "--max_steps", "20") as waiting:
            assert waiting.stdout is not None
            lines = []
            while "Waiting for cs2-02, held by job 1" not in (lines or [""])[-1]:
                lines.append(waiting.stdout.readline())
                assert lines[-1], "".join(lines)
            assert any("Cached compilation found" in line for line in lines)
            holder.terminate()
            rest, err = waiting.communicate(timeout=STALL_S)
        assert waiting.returncode == 0, err
        assert "Loss for final step" in rest
    assert holder.returncode == 143


@pytest.mark.slow
def test_the_folder_of_the_command_has_a_link_to_the_newest_report(place: FcMnist) -> None:
    link = place.path / "compile_report.txt"
    link.write_text("my own")
    assert place.cpu("--mode=compile_only").returncode == 0
    assert link.read_text() == "my own"
    link.unlink()
    (of_cpu,) = place.model_dir.glob("tfcs_*")
    said(place, STREAMING, "--mode=compile_only")
    (streamed,) = set(place.model_dir.glob("tfcs_*")) - {of_cpu}
    assert link.resolve() == streamed / "compile_report.txt"
    assert link.read_text().startswith("Estimated Overall Performance\n")
    assert "Cached compilation found" in place.cpu("--mode=compile_only").stderr
    assert link.resolve() == of_cpu / "compile_report.txt"


BY_RUN = [
    ("python", PIPELINED, ("--cs_ip", "127.0.0.1:9000"), "cs2-01 (127.0.0.1) in PIPELINED mode"),
    ("python-ws", STREAMING, (), "cs2-02 (127.0.0.2) in WEIGHT_STREAMING mode"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("interpreter", "mode", "cs_ip", "where"), BY_RUN)
def test_a_run_reuses_what_was_compiled_on_a_cpu_node(
    place: FcMnist, interpreter: str, mode, cs_ip: tuple[str, ...], where: str
) -> None:
    place.configure(runconfig__max_steps=2)
    done = place.run(interpreter, RUN, *place.own(("--compile_only", *cs_ip)), command="csrun_cpu")
    assert done.returncode == 0, done.stderr
    assert f"Compiling for {where}" in done.stderr
    assert "WARNING" not in done.stderr
    ran = said(place, mode, *cs_ip)
    assert "Cached compilation found for this model configuration" in ran
    assert "Compiled in" not in ran


def test_a_compile_for_a_mode_that_its_system_is_not_in_says_so(place: FcMnist) -> None:
    words = place.own(("--validate_only", "--cs_ip", "cs2-02"))
    done = place.run("python", RUN, *words, command="csrun_cpu")
    assert done.returncode == 0, done.stderr
    assert "WARNING:csrun:cs2-02 is not in PIPELINED mode; switch it" in done.stderr


def test_the_weight_streaming_interpreter_trains_on_the_cpu_alone_and_says_so(
    place: FcMnist,
) -> None:
    place.configure(runconfig__max_steps=2, runconfig__weight_store="disk")
    done = place.run("python-ws", RUN, *place.own(()), command="csrun_cpu")
    assert done.returncode == 0, done.stderr
    assert "python-ws has no effect without csrun_wse: running in this process" in done.stderr
    assert "runconfig.weight_store: disk has no effect in this process" in done.stderr
