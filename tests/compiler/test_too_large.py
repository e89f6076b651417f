"""Models that the wafer cannot hold: the layer, the bytes, and what fits."""

import re

import msgspec
import pytest
from support.programs import SYSTEM, Network, options_of

from csrun.base.mode import ExecutionMode
from csrun.compiler import CompileError, compile_model


@pytest.mark.parametrize(
    ("mode", "minibatches", "cores", "remedy"),
    [
        (ExecutionMode.PIPELINED, 1, 190, r"use weight streaming \(\S+ with \S+\) or lower"),
        (ExecutionMode.PIPELINED, 4, 190, r"use weight streaming \(\S+ with \S+\) or lower"),
        (ExecutionMode.WEIGHT_STREAMING, 1, 100, "lower"),
    ],
)
def test_a_plan_larger_than_the_wafer_names_layer_bytes_and_the_batch_that_fits(
    tmp_path, mode, minibatches, cores, remedy
):
    small = msgspec.structs.replace(SYSTEM, sram_kb_per_core=1, usable_cores=cores)
    options = options_of(mode, system=small, minibatches_in_flight=minibatches)

    def compiled_in(batch: int) -> int:
        network = Network((12, 64, 9, 5), batch // minibatches)
        return compile_model(network.trace(), tmp_path, options).executable.plan.arena_bytes

    with pytest.raises(CompileError, match=r"layer dense needs [\d,]+ bytes of") as caught:
        compiled_in(512)
    there = re.search(
        rf"of ([\d,]+) on .* has ([\d,]+): {remedy} batch_size to ", str(caught.value)
    )
    assert there is not None
    needed, has = (int(number.replace(",", "")) for number in there.groups())
    assert needed > has == cores * 1024
    fits = int(str(caught.value).rpartition(" ")[2])
    assert 0 < fits < 512
    assert compiled_in(fits) <= has
    with pytest.raises(CompileError, match=f"{remedy} batch_size to {fits}$"):
        compiled_in(fits + minibatches)


@pytest.mark.parametrize(
    ("mode", "copies", "remedy"),
    [
        (ExecutionMode.PIPELINED, 3, r"use weight streaming \(csrun_wse with python-ws\)"),
        (ExecutionMode.WEIGHT_STREAMING, 1, "give the layer fewer units, or use a larger system"),
    ],
)
def test_weights_larger_than_the_wafer_name_their_layer_and_what_helps(
    tmp_path, mode, copies, remedy
):
    """Kernel and bias; in a pipeline with gradients and momentum. Then buffers for one sample."""
    network = Network(sizes=(12, 7, 4000, 5), batch=1)
    small = msgspec.structs.replace(SYSTEM, sram_kb_per_core=1, usable_cores=100)
    options = options_of(mode, system=small)
    weights = 4 * (7 + 1) * 4000
    buffers = 4 * 4000 + (4000 + 32)  # output, its mask of bytes
    needed = f"{copies * weights + buffers:,}"
    with pytest.raises(CompileError, match=rf"^layer dense_1 needs {needed} bytes .*: {remedy}$"):
        compile_model(network.trace(), tmp_path, options)
