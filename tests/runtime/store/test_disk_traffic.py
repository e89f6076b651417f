"""Bytes read and written per step, compared with the table of docs/precision.md."""

from dataclasses import replace

import pytest
from support.programs import Network

from csrun import nn
from csrun.base.half_formats import BFLOAT16
from csrun.base.mode import ExecutionMode, RunMode
from csrun.runtime.store.disk_traffic import DiskTraffic, disk_traffic
from csrun.runtime.store.residency import least_bytes

WIDTH, LAYERS = 256, 32
DEEP = Network(sizes=(WIDTH,) * LAYERS + (10,), optimizer=nn.AdamW(0.01))
CLIPPED, SGD = nn.AdamW(0.01, clip_norm=0.5), nn.SGD(0.1)
#: Bytes per weight that are read and written: by optimizer, micro-batches, in float32 and 16 bits.
TRAINING = {
    "AdamW": (DEEP.optimizer, 1, (16, 12), (16, 12)),
    "SGD": (SGD, 1, (8, 4), (8, 4)),
    "clipped": (CLIPPED, 1, (20, 16), (18, 14)),
    "micro-batches": (DEEP.optimizer, 3, (40, 24), (32, 26)),
}


def per_weight(plan, memory_bytes):
    weights = sum(group.nbytes for group in plan.groups) / 4
    traffic = disk_traffic(plan, memory_bytes)
    return traffic.read_bytes / weights, traffic.written_bytes / weights


@pytest.mark.parametrize("storage", [None, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", TRAINING)
def test_a_training_step_moves_the_bytes_of_the_table(tmp_path, name, storage):
    optimizer, micro_batches, whole, half = TRAINING[name]
    network = replace(DEEP, optimizer=optimizer, storage=storage)
    options = {"micro_batches": micro_batches}
    plan = network.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, 1, **options).plan
    # A few pages at the ends of regions stay; the last group is not read again for its second pass.
    expected = pytest.approx(half if storage else whole, rel=0.06)
    assert per_weight(plan, least_bytes(plan)) == expected
    assert disk_traffic(plan, plan.store.nbytes) == DiskTraffic(0, 0)


@pytest.mark.parametrize(("storage", "nbytes"), [(None, 4), (BFLOAT16, 2)])
def test_an_evaluation_reads_what_is_sent(tmp_path, storage, nbytes):
    network, mode = replace(DEEP, storage=storage), ExecutionMode.WEIGHT_STREAMING
    plan = network.compile(tmp_path, mode, 1, RunMode.EVAL).plan
    assert per_weight(plan, least_bytes(plan)) == pytest.approx((nbytes, 0), rel=0.03)


def test_memory_for_the_weights_saves_the_same_in_both(tmp_path):
    """With n bytes per weight in memory a step of AdamW moves 28 - 3n bytes, above 4: 24 - 2n."""
    for storage in (None, BFLOAT16):
        network = replace(DEEP, storage=storage)
        plan = network.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, 1).plan
        weights = sum(group.nbytes for group in plan.groups) / 4
        for kept, moved in ((2, 22), (4, 16), (8, 8)):
            memory_bytes = least_bytes(plan) + int(kept * weights)
            assert sum(per_weight(plan, memory_bytes)) == pytest.approx(moved, rel=0.06)
