"""Memory of batches is reused."""

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
from itertools import islice
from resource import RUSAGE_SELF, getrusage
import numpy as np
from csrun.data import Dataset

def normalised(pixels):
    return (pixels.astype(np.float32) - 128) / np.float32(64)

made = Dataset.from_arrays(np.ones((1024, 12288), np.uint8)).repeat().batch(1024)
batches = made.map(normalised).batches()
for _ in islice(batches, 8):
    pass
before = getrusage(RUSAGE_SELF).ru_minflt
for _ in islice(batches, 20):
    pass
print((getrusage(RUSAGE_SELF).ru_minflt - before) // 20)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_a_mapped_batch_is_made_in_the_memory_of_earlier_ones() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert int(done.stdout) < 100
