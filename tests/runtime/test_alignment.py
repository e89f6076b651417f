"""Memory of a program in one process: aligned to a cache line, as vectors of 64 bytes require."""

import pytest
from support.programs import ArrayData, Network

from csrun.base.mode import ExecutionMode
from csrun.base.run_config import RunSettings
from csrun.executable.arrays import ALIGNMENT_BYTES, empty, zeros
from csrun.runtime.chief.cpu import CpuMachine

NETWORK = Network(sizes=(12, 40, 5))


@pytest.mark.parametrize("allocate", [empty, zeros])
def test_memory_starts_on_a_cache_line(allocate):
    blocks = [allocate(nbytes) for nbytes in (0, 1, 63, 4096, 1 << 24)]
    assert [block.nbytes for block in blocks] == [0, 1, 63, 4096, 1 << 24]
    assert {block.ctypes.data % ALIGNMENT_BYTES for block in blocks if block.size} == {0}


@pytest.mark.parametrize("mode", ExecutionMode)
def test_arrays_of_a_program_start_on_a_cache_line(tmp_path, mode):
    executable = NETWORK.compile(tmp_path, mode)
    machine = CpuMachine(executable, ArrayData(NETWORK.batches(1)), RunSettings(), 0)
    batch = machine.fed.source.take().batch
    arrays = [*machine.state.values(), *machine.gradients.values(), *batch]
    assert {array.ctypes.data % ALIGNMENT_BYTES for array in arrays} == {0}
