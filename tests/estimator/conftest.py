"""Fixture of the estimator's tests: a model_dir of a small training."""

from contextlib import chdir

import pytest
from support.two_classes import estimator, train_input


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model_dir with checkpoints at steps 0, 10, 20 and 30."""
    folder = tmp_path_factory.mktemp("trained")
    with chdir(folder):
        estimator(folder).train(train_input, max_steps=30)
    return folder
