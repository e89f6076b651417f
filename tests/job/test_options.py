"""Options of the shipped run.py: their effects, or their refusal."""

import pytest
from support.fc_mnist import FcMnist


def test_a_limit_of_the_command_line_beats_the_files_other_one(place: FcMnist) -> None:
    place.configure(runconfig__max_steps=None, runconfig__steps=30)
    done = place.cpu("--max_steps", "10")
    assert done.returncode == 0, done.stderr
    assert place.checkpoint(10).exists()
    assert not place.checkpoint(30).exists()


def test_predictions_of_the_checkpoint_that_was_given(trained: FcMnist) -> None:
    done = trained.cpu("--mode", "predict", "--checkpoint_path", "model_dir/model-ckpt-5")
    assert "with the weights of global step 5" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "mode", ["eval_all", pytest.param("train_and_eval", marks=pytest.mark.slow)]
)
def test_a_checkpoint_that_would_not_be_used_is_refused(place: FcMnist, mode: str) -> None:
    done = place.cpu("--mode", mode, "--checkpoint_path", "model_dir/model-ckpt-5")
    assert done.returncode == 2
    assert f"--checkpoint_path has no effect with --mode {mode}" in done.stderr
    assert not place.model_dir.exists()
