"""Weights sent in 16 bits: rounded when sent, or after updates in the store."""

from dataclasses import replace

import pytest
from support.running import (
    NETWORK,
    PIPELINED,
    SAMPLES,
    STREAMING,
    assert_same,
    copied,
    data,
    losses_of,
    opened,
    validation,
)

from csrun.base.half_formats import FLOAT16
from csrun.base.mode import RunMode
from csrun.executable.shared_store import window_bytes
from csrun.runtime.chief.machine import Feed

STEPS = 6
HALF = replace(NETWORK, storage=FLOAT16)


def alternated(tmp_path, mode, way, is_whole_first):
    """Losses and state after steps of two programs, one in micro-batches, and evaluations."""
    whole = HALF.compile(tmp_path, mode, 1)
    parts = replace(HALF, batch=HALF.batch // 2).compile(tmp_path, mode, 1, micro_batches=2)
    own, other = (whole, parts) if is_whole_first else (parts, whole)
    own = own.with_window(window_bytes(other.plan))
    larger = replace(HALF, batch=4 * HALF.batch).compile(tmp_path, mode, 1, RunMode.EVAL)
    datasets, losses = [data(HALF, STEPS), validation(HALF)], []
    with opened(way, tmp_path, own, datasets, HALF.parameters()) as machine:
        beside = machine.load(other, machine)
        evaluate = machine.load(larger, Feed(datasets[1], 1))
        for first in range(0, STEPS, 3):
            losses += losses_of(machine, first, 2)
            losses += losses_of(beside, first + 2, 1)
            if first:
                evaluate.begin()
            losses += losses_of(evaluate, 0, SAMPLES)
        return losses, copied(machine), own.plan


@pytest.mark.parametrize("is_whole_first", [True, False])
@pytest.mark.parametrize("way", ["in process", "memory 1", "tcp 1"])
def test_programs_share_a_store_with_words_or_without(tmp_path, way, is_whole_first):
    losses, state, _ = alternated(tmp_path / "here", PIPELINED, "in process", is_whole_first)
    found, streamed, plan = alternated(tmp_path, STREAMING, way, is_whole_first)
    assert (plan.store.words_offset is None) == is_whole_first
    assert found == losses
    assert len(set(losses)) == len(losses)
    assert_same(streamed, state)
