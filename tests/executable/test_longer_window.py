"""Store with a larger window for gradients: offsets of the regions after it, in every layout."""

import pytest
from support.programs import Network

from csrun import nn
from csrun.base.half_formats import BFLOAT16
from csrun.base.mode import ExecutionMode, RunMode
from csrun.executable import Plan
from csrun.executable.shared_store import with_window

MORE = 640  # bytes
CASES = {
    "float32": (None, ExecutionMode.WEIGHT_STREAMING, {}),
    "words": (BFLOAT16, ExecutionMode.WEIGHT_STREAMING, {"micro_batches": 2}),
    "two systems": (None, ExecutionMode.WEIGHT_STREAMING, {"systems": 2}),
    "on the wafer": (None, ExecutionMode.PIPELINED, {}),
}


def starts_behind(plan: Plan) -> list[int]:
    """Offsets of the regions after the gradients, in the order of the layout."""
    store = plan.store
    later = store.words_offset, store.numbers_offset, store.losses_offset
    return [*(slot.offset_bytes for slot in store.slots), *(o for o in later if o is not None)]


@pytest.mark.parametrize(("storage", "mode", "options"), CASES.values(), ids=CASES)
def test_a_larger_window_shifts_all_later_regions(tmp_path, storage, mode, options):
    network = Network(storage=storage, optimizer=nn.AdamW(0.01))
    plan = network.compile(tmp_path, mode, 1, **options).plan
    assert with_window(plan, plan.store.gradients_bytes) is plan
    grown = with_window(plan, plan.store.gradients_bytes + MORE - 1)
    moved = MORE * plan.systems
    assert grown.store.gradients_bytes == plan.store.gradients_bytes + MORE
    assert grown.store.gradients_offset == plan.store.gradients_offset
    assert grown.store.nbytes == plan.store.nbytes + moved
    assert starts_behind(grown) == [start + moved for start in starts_behind(plan)]
    end = grown.store.gradients_offset + plan.systems * grown.store.gradients_bytes
    assert min(starts_behind(grown)) == end
    own = moved if plan.store_in_arena else 0
    assert grown.arena_bytes == plan.arena_bytes + own
    assert [b.offset_bytes - own for b in grown.buffers] == [b.offset_bytes for b in plan.buffers]


def test_an_evaluation_has_no_window(tmp_path):
    plan = Network().compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, 1, RunMode.EVAL).plan
    assert with_window(plan, MORE) is plan
