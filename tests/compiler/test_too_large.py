"""Models too large for the wafer: the error names the layer, its bytes, and a size that fits."""

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


ROW = 4 * 4000  # bytes of a row of the kernel, of the bias, of a sample's output
MASK = 4000 + 32  # bytes that say where the output is not 0
CONTRACTED = "give the layer fewer units, or use a larger system"


@pytest.mark.parametrize(
    ("mode", "cores", "layer", "needed", "remedy"),
    [
        (
            ExecutionMode.PIPELINED,
            100,
            "dense_1",
            3 * (7 + 1) * ROW + ROW + MASK,
            r"use weight streaming \(csrun_wse with python-ws\)",
        ),
        (
            ExecutionMode.WEIGHT_STREAMING,
            50,
            r"dense_1/kernel\[:,0:224\]",  # 6,272 bytes of the 6,400 that are an eighth
            224 * 7 * 4 + ROW,
            CONTRACTED,
        ),
    ],
)
def test_weights_larger_than_the_wafer_name_their_layer_and_what_helps(
    tmp_path, mode, cores, layer, needed, remedy
):
    """Kernel and bias; pipelined, with gradients and momentum; streamed, some columns.

    Then the buffers of one sample.
    """
    network = Network(sizes=(12, 7, 4000, 5), batch=1)
    small = msgspec.structs.replace(SYSTEM, sram_kb_per_core=1, usable_cores=cores)
    options = options_of(mode, system=small)
    with pytest.raises(CompileError, match=rf"^layer {layer} needs {needed:,} bytes .*: {remedy}$"):
        compile_model(network.trace(), tmp_path, options)


def test_parts_larger_than_a_wafer_has_room_for_are_to_be_smaller(tmp_path):
    """A bound set by the user replaces the share of the wafer that fits."""
    small = msgspec.structs.replace(SYSTEM, sram_kb_per_core=1, usable_cores=100)
    options = options_of(ExecutionMode.WEIGHT_STREAMING, system=small)
    network = Network(sizes=(12, 400, 200, 5), batch=2)
    told = msgspec.structs.replace(options, max_group_bytes=1 << 20)
    with pytest.raises(CompileError, match=r": lower max_group_bytes to \d+ .* or remove it") as e:
        compile_model(network.trace(), tmp_path, told)
    lower = int(re.search(r"max_group_bytes to (\d+)", str(e.value))[1])
    for max_group_bytes in (lower, None):
        fitting = msgspec.structs.replace(options, max_group_bytes=max_group_bytes)
        compile_model(network.trace(), tmp_path, fitting)
