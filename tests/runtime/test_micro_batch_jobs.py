"""Micro-batches in a job: the bits of one process, over shared memory and TCP."""

from dataclasses import replace

import pytest
from support.programs import options_of
from support.running import (
    NETWORK,
    PIPELINED,
    STREAMING,
    TIED,
    assert_same,
    begun,
    copied,
    data,
    losses_of,
    opened,
)

from csrun.compiler import compile_model
from csrun.runtime.step import weights

COUNT, STEPS = 4, 12


def compiled(network, root, mode):
    part = replace(network, batch=network.batch // COUNT)
    options = options_of(mode, group_bytes=1, micro_batches=COUNT)
    return compile_model(part.trace(), root, options).executable


@pytest.mark.parametrize("network", [NETWORK, TIED], ids=["dense", "tied and clipped"])
@pytest.mark.parametrize("way", ["memory 1", "tcp 1"])
def test_a_jobs_bits_are_those_of_one_process(tmp_path, monkeypatch, network, way):
    monkeypatch.setattr(weights, "PREFETCH_BYTES", 0)
    alone = begun(compiled(network, tmp_path, PIPELINED), data(network), network.parameters())
    expected = losses_of(alone, 0, STEPS)
    executable = compiled(network, tmp_path, STREAMING)
    with opened(way, tmp_path, executable, [data(network)], network.parameters()) as machine:
        assert losses_of(machine, 0, STEPS // 2) == expected[: STEPS // 2]
        assert losses_of(machine, STEPS // 2, STEPS // 2) == expected[STEPS // 2 :]
        assert_same(copied(machine), copied(alone))
