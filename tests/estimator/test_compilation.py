"""Warnings before a compile: batches that are slow to make, or too large for the memory."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from csrun.base.errors import UsageError
from csrun.data import Dataset
from csrun.estimator import compilation


def made(samples: int) -> Dataset:
    """A float32 and an int32 per sample: 8 bytes."""
    data = Dataset.from_arrays(np.zeros(samples, np.float32), np.zeros(samples, np.int32))
    return data.batch(samples)


@pytest.mark.parametrize(("samples", "said"), [(1_250_000, True), (1_249_999, False)])
@pytest.mark.parametrize("estimated", [True, False])
def test_a_batch_of_many_bytes_is_named_by_its_size(samples, said, estimated, caplog, monkeypatch):
    monkeypatch.setattr(compilation, "LARGE_BYTES", 10**7)
    data = made(samples)
    if not estimated:
        data = Dataset.from_batches(list(data))
    caplog.set_level(logging.INFO, "csrun")
    compilation.check_batch_bytes(data)
    line = "A batch has 10 MB: the first one may take minutes"
    assert caplog.messages == [line] * said


def test_a_batch_above_the_memory_is_refused_before_it_is_made(monkeypatch):
    memory = SimpleNamespace(virtual_memory=lambda: SimpleNamespace(available=23_500_000_000))
    monkeypatch.setattr(compilation, "psutil", memory)
    sizes = []

    def load(number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sizes.append(len(number))
        return np.zeros((len(number), 28, 28), np.float32), number.astype(np.int32)

    data = Dataset.from_arrays(np.arange(60)).repeat().batch(8_000_000).map(load)
    said = "a batch of 25.1 GB exceeds this machine's free memory of 23.5 GB: lower batch_size"
    with pytest.raises(UsageError, match=f"^input_fn: {said}$"):
        compilation.check_batch_bytes(data)  # 4 (28 * 28 + 1) bytes a sample: 25.12 GB
    assert max(sizes) < 10
