"""Memory of processes together, compared with what the kernel counts of one."""

import os

import numpy as np
import pytest
from bench.processes import job_mb, rss_mb

MEMORY_MB = 64
LIBRARIES_MB = 5  # of the interpreter and NumPy, at least


def test_memory_of_one_process_is_its_resident_set() -> None:
    memory = np.ones(MEMORY_MB << 17)  # float64
    assert job_mb([os.getpid()]) == pytest.approx(rss_mb(), rel=0.05)
    assert memory.nbytes == MEMORY_MB << 20


def test_pages_of_files_count_once() -> None:
    own = os.getpid()
    memory = np.ones(MEMORY_MB << 17)
    once_mb, twice_mb = job_mb([own]), job_mb([own, own])
    assert once_mb + MEMORY_MB <= twice_mb < 2 * once_mb - LIBRARIES_MB
    assert memory.nbytes == MEMORY_MB << 20
