"""`--multireplica` as a command: training, resuming with and without, refusals."""

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.fc_mnist import FOLDER, TWO_STREAMERS, FcMnist
from support.rectangles import apart
from support.sites import slowly_linked_site

from csrun.executable import Plan

ONE_STREAMER = ("--total-nodes", "2", "--tasks-per-node", "1", "--cpus-per-task", "1")
MANY_STREAMERS = ("--total-nodes", "3", "--tasks-per-node", "2", "--cpus-per-task", "1")
CHOSEN = r"INFO:csrun:Multireplica: (\d+) replicas of the model, estimated [\d.]+x as fast as one"
SMALL = {
    "model__hidden_sizes": [8],
    "train_input__batch_size": 256,
    "runconfig__max_steps": 20,
    "runconfig__save_checkpoints_steps": 10,
}


@pytest.fixture
def site(place: FcMnist, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site where replicas of a small model pay."""
    place.configure(**SMALL)
    path = slowly_linked_site(place.path)
    monkeypatch.setenv("CSRUN_SITE", str(path))
    return path


def state(place: FcMnist, step: int) -> dict[str, np.ndarray]:
    return load_file(place.checkpoint(step))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The state after the steps of `site` with one replica."""
    place = FcMnist(tmp_path_factory.mktemp("alone"))
    place.configure(**SMALL)
    done = place.cpu()
    assert done.returncode == 0, done.stderr
    assert "Multireplica" not in done.stderr
    return state(place, 20)


def assert_same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_job_trains_in_replicas_as_without_them(
    place: FcMnist, site: Path, alone: dict[str, np.ndarray]
) -> None:
    text, head = (FOLDER / "data.py").read_text(), "    def load(elements: np.ndarray) -> Batch:\n"
    assert head in text
    noted = f"{head}        open('sizes', 'a').write(f'{{len(elements)}} ')\n"
    script = place.copy(data=text.replace(head, noted))
    arguments = place.own(("--multireplica",))
    done = place.run("--site", str(site), *MANY_STREAMERS, "python", script, *arguments)
    assert done.returncode == 0, done.stderr
    (replicas,) = map(int, re.findall(CHOSEN, done.stdout))
    assert replicas > 1
    sizes = (place.path / "sizes").read_text().split()
    assert sizes.count(str(256 // replicas)) >= 20 * replicas  # the streamers' of 20 steps
    assert sizes.count("256") < 20  # those of the chief, for shapes and the input report
    (plan_file,) = place.model_dir.glob("tfcs_*/plan.json")
    plan = msgspec.json.decode(plan_file.read_bytes(), type=Plan)
    assert (plan.replicas, plan.batch_size) == (replicas, 256)
    places = [region.rectangle for region in plan.floor_plan]
    assert len(places) == replicas * len(plan.layers)
    assert all(apart(a, b) for i, a in enumerate(places) for b in places[:i])
    report = (place.path / "compile_report.txt").read_text()
    assert f"Replicas of the model: {replicas}." in report
    page = (plan_file.parent / "compile_report.html").read_text()
    assert page.count('class="place') == len(places) + len(plan.layers)  # one is enlarged, too
    assert_same(state(place, 20), alone)


def test_a_job_with_too_few_streamers_is_refused(place: FcMnist, site: Path) -> None:
    layout = ("--site", str(site), *ONE_STREAMER)
    done = place.wse("--multireplica", layout=layout, interpreter="python")
    text = done.stdout + done.stderr
    assert done.returncode == 2, text
    assert re.search(
        r"error: multireplica: \d+ replicas of the model need a streamer each, the job has 1: "
        r"run it with --tasks-per-node \d+, or leave --multireplica out",
        text,
    )
    assert not place.checkpoint(0).exists()


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_either_way_resumes_the_other(
    place: FcMnist, site: Path, alone: dict[str, np.ndarray], first: bool
) -> None:
    """Ten steps with replicas and ten without are twenty steps of the same batches."""
    options = [("--multireplica",), ()] if first else [(), ("--multireplica",)]
    for steps, option in zip(("10", "20"), options, strict=True):
        done = place.cpu("--max_steps", steps, *option)
        assert done.returncode == 0, done.stderr
        assert bool(re.search(CHOSEN, done.stderr)) == bool(option)
    assert "model-ckpt-10" in done.stderr
    assert "WARNING" not in done.stderr
    assert_same(state(place, 20), alone)


@pytest.mark.slow
def test_the_params_file_asks_for_it_as_well_and_evaluations_have_none(
    place: FcMnist, site: Path
) -> None:
    place.configure(
        model__hidden_sizes=[8],
        train_input__batch_size=256,
        eval_input__batch_size=256,  # the second of 360 samples has 104
        runconfig__max_steps=20,
        runconfig__multireplica=True,
    )
    done = place.cpu("--mode", "train_and_eval")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(CHOSEN, done.stderr)) == 1
    assert "multireplica: true" in (place.model_dir / "train" / "params_train.yaml").read_text()
    (accuracy,) = re.findall(r"global step 20: (accuracy = [\d.]+)", done.stderr)
    place.configure(model__hidden_sizes=[8])
    assert f"global step 20: {accuracy}" in place.cpu("--mode", "eval").stderr


@pytest.mark.slow
def test_one_replica_is_said_to_be_best(place: FcMnist) -> None:
    done = place.cpu("--multireplica", "--compile_only")
    assert done.returncode == 0, done.stderr
    best = r"Multireplica: one replica of the model: up to \d+ fit, but more are not estimated"
    assert re.search(best, done.stderr)
    again = place.cpu("--multireplica", "--compile_only")
    assert "Multireplica: one replica of the model, as chosen by the cached compile" in again.stderr
    assert "Cached compilation found" in again.stderr
    (report,) = place.model_dir.glob("tfcs_*/compile_report.txt")
    assert "Replicas of the model: 1." in report.read_text()


def test_weight_streaming_has_none(place: FcMnist) -> None:
    done = place.wse("--multireplica", layout=TWO_STREAMERS)
    text = done.stdout + done.stderr
    assert done.returncode == 2, text
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if "error: " in line]
    assert "runconfig.multireplica must be false in weight streaming" in line
    assert "leave --multireplica out" in line
    assert not place.checkpoint(0).exists()


@pytest.mark.slow
def test_replicas_share_the_scale_of_the_loss(place: FcMnist, site: Path) -> None:
    """One norm of all gradients decides, so that its state is that of a run without replicas."""
    scaled = {
        "runconfig__precision": "mixed_float16",
        "optimizer__loss_scaling_factor": "dynamic",
        "optimizer__steps_per_increase": 8,
        "optimizer__initial_loss_scale": 2.0**10,
    }
    place.configure(**SMALL, **scaled)
    layout = ("--site", str(site), *MANY_STREAMERS)
    done = place.wse("--multireplica", layout=layout, interpreter="python")
    assert done.returncode == 0, done.stderr
    assert int(re.findall(CHOSEN, done.stdout)[0]) > 1
    ours = state(place, 20)
    alone = FcMnist(place.path / "alone")
    alone.path.mkdir()
    alone.configure(**SMALL, **scaled)
    assert alone.cpu().returncode == 0
    theirs = state(alone, 20)
    assert ours["loss_scale"] == theirs["loss_scale"] == 2.0**12
    for name, array in theirs.items():  # sums of gradients are rounded, in another order
        np.testing.assert_allclose(ours[name], array, rtol=1e-2, atol=1e-3, err_msg=name)
