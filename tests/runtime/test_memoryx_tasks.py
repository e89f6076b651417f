"""Several MemoryX tasks: the bits of one, in memory and on disk, local and remote."""

from dataclasses import replace

import pytest
from support.running import (
    NETWORK,
    SAMPLES,
    STREAMING,
    TIED,
    assert_same,
    begun,
    compiled,
    copied,
    data,
    losses_of,
    opened,
    validation,
)

from csrun import nn
from csrun.base.mode import RunMode
from csrun.runtime.chief.machine import Feed

STEPS = 20
CLIPPED = replace(NETWORK, optimizer=nn.AdamW(0.01, clip_norm=0.1))


@pytest.mark.parametrize("wire", ["memory", "tcp"])
@pytest.mark.parametrize("servers", [2, 5])
@pytest.mark.parametrize("network", [NETWORK, CLIPPED, TIED], ids=["each", "clipped", "tied"])
def test_any_number_of_tasks_gives_the_bits_of_one_process(tmp_path, network, servers, wire):
    """With an evaluation in between, whose single group is spread over all tasks."""
    programs = compiled(network, tmp_path, STREAMING)
    alone = begun(programs.train, data(network), network.parameters())
    expected = losses_of(alone, 0, STEPS)
    larger = replace(network, batch=4 * network.batch)
    whole = larger.compile(tmp_path / "whole", STREAMING, 1 << 20, RunMode.EVAL)
    datasets, first = [data(network), validation(network)], network.parameters()
    way = f"{wire} 1"
    with opened(way, tmp_path, programs.train, datasets, first, servers=servers) as machine:
        evaluate = machine.load(whole, Feed(datasets[1], 1))
        trained = losses_of(machine, 0, STEPS // 2)
        evaluated, middle = losses_of(evaluate, 0, SAMPLES), copied(machine)
        trained += losses_of(machine, STEPS // 2, STEPS - STEPS // 2)
        assert_same(copied(alone), copied(machine))
    assert trained == expected
    resumed = begun(programs.evaluate, validation(network), middle)
    assert evaluated == losses_of(resumed, 0, SAMPLES)
