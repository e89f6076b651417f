"""Tensors of a checkpoint are read once, and nothing is written unless all are finite."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from csrun.records import checkpoints
from csrun.runtime.step.finite import PIECE_BYTES, NotFiniteError, finite

VALUES = np.random.default_rng(1).normal(size=(7, PIECE_BYTES // 8)).astype(np.float32)


class Elsewhere:
    """Tensor of a remote store, which counts reads."""

    def __init__(self, values: np.ndarray, sent: list[int]) -> None:
        self._values, self._sent = values, sent
        self.shape, self.dtype, self.size = values.shape, values.dtype, values.size

    def reshape(self, _: int) -> "Elsewhere":
        return Elsewhere(self._values.reshape(-1), self._sent)

    def __getitem__(self, part: slice) -> "Elsewhere":
        return Elsewhere(self._values[part], self._sent)

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        self._sent.append(self._values.nbytes)
        return self._values


def test_a_tensor_is_sent_once_and_in_pieces(tmp_path: Path) -> None:
    sent: list[int] = []
    writer = checkpoints.Writer(tmp_path, {}, 1)
    path = writer.write(3, finite({"w": Elsewhere(VALUES, sent), "b": np.ones(3, np.float32)}))
    assert sum(sent) == VALUES.nbytes
    assert max(sent) <= PIECE_BYTES
    found = load_file(path)
    assert np.array_equal(found["w"], VALUES)
    checkpoints.open_checkpoint(path).restore({"w": np.empty_like(VALUES), "b": np.empty(3, "f4")})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, -1])
def test_what_is_not_finite_leaves_the_checkpoints_as_they_were(
    value: float, at: int, tmp_path: Path
) -> None:
    writer = checkpoints.Writer(tmp_path, {}, 1)
    writer.write(3, finite({"w": VALUES}))
    before = sorted(path.name for path in tmp_path.iterdir())
    broken = VALUES.copy()
    broken.reshape(-1)[at] = value
    with pytest.raises(NotFiniteError, match="tensor w is not finite"):
        writer.write(4, finite({"w": broken}))
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert checkpoints.kept_steps(tmp_path) == (3,)


def test_tensors_that_are_not_checked_may_have_any_values(tmp_path: Path) -> None:
    state = {"w": VALUES, "least": np.array([np.inf], np.float32)}
    path = checkpoints.Writer(tmp_path, {}, 1).write(1, finite(state, {"least"}))
    assert load_file(path)["least"] == np.inf


def test_tensors_of_any_shape_and_of_none(tmp_path: Path) -> None:
    state = {
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(2.5),
        "part": VALUES[::2, ::3],
    }
    path = checkpoints.Writer(tmp_path, {}, 1).write(1, finite(state))
    found = load_file(path)
    assert all(np.array_equal(found[name], array) for name, array in state.items())
