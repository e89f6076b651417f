"""The line on a batch that takes long to make, logged before a compile."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from csrun.data import Dataset
from csrun.estimator import compilation


@pytest.mark.parametrize(("samples", "said"), [(1_250_000, True), (1_249_999, False)])
def test_a_batch_of_many_bytes_is_named_by_its_size(samples, said, caplog, monkeypatch):
    """A float32 and an int32 a sample: 8 bytes."""
    monkeypatch.setattr(compilation, "LARGE_BYTES", 10**7)
    data = Dataset.from_arrays(np.zeros(samples, np.float32), np.zeros(samples, np.int32))
    caplog.set_level(logging.INFO, "csrun")
    compilation._say_large_batch(SimpleNamespace(dataset=data.batch(samples)))
    line = "Each batch has 10 MB: making the first one may take minutes"
    assert caplog.messages == [line] * said
