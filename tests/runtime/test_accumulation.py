"""Gradient accumulation: steps of one larger batch, and equal bits in a job."""

from dataclasses import replace

import numpy as np
import pytest
from support.programs import ArrayData, Network, options_of
from support.running import (
    NETWORK,
    PIPELINED,
    STREAMING,
    TIED,
    assert_same,
    begun,
    copied,
    data,
    opened,
)

from csrun import nn
from csrun.compiler import compile_model
from csrun.runtime.step import weights
from csrun.runtime.step.gradient_sums import places
from csrun.runtime.wire.messages import AccumulatedBatches, StepOrder

#: Of three steps, which have three batches, two and one; orders end amid them.
ORDERS = (
    (0, AccumulatedBatches(0, (False, False))),
    (0, AccumulatedBatches(2, (True, False))),
    (1, AccumulatedBatches(1, (False,))),
    (1, AccumulatedBatches(2)),
    (2, AccumulatedBatches(0, (True,))),
)


def compiled(network, root, mode):
    options = options_of(mode, group_bytes=1, accumulates=True)
    return compile_model(network.trace(), root, options).executable


def taken(machine, orders=ORDERS):
    """The losses of batches."""
    found = []
    for first, accumulation in orders:
        done = machine.run(StepOrder(first, len(accumulation.ends), accumulation=accumulation))
        assert done.done == len(accumulation.ends)
        found += machine.losses(done.done)
    return found


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
@pytest.mark.parametrize("last", [(False, False, True), (False, False, False)], ids=str)
def test_a_step_is_that_of_the_batches_as_one(tmp_path, mode, last):
    """The sum of three means is three times the mean of all; an update may come with the last

    batch, or after it. A step that is started again discards earlier gradients.
    """
    small = Network(batch=4, precision="float64", optimizer=nn.SGD(0.05, momentum=0.9))
    large = replace(small, batch=12, optimizer=nn.SGD(0.15, momentum=0.9))
    batches = small.batches(7)
    of_a_step = [tuple(map(np.concatenate, zip(*batches[i : i + 3], strict=True))) for i in (0, 4)]
    whole = begun(large.compile(tmp_path, mode), ArrayData(of_a_step), small.parameters())
    assert whole.run(StepOrder(0, 2)).done == 2
    parts = begun(compiled(small, tmp_path, mode), ArrayData(batches), small.parameters())
    for step, lost in ((0, ()), (1, (False,))):
        taken(parts, [(step, AccumulatedBatches(0, ends)) for ends in (lost, last) if ends])
        if not last[-1]:
            taken(parts, [(step, AccumulatedBatches(3))])
    for name in small.parameters():
        np.testing.assert_allclose(parts.state[name], whole.state[name], 1e-11, 1e-13, err_msg=name)


@pytest.mark.parametrize("network", [NETWORK, TIED], ids=["dense", "tied and clipped"])
@pytest.mark.parametrize("way", ["memory 1", "tcp 1"])
def test_a_jobs_bits_are_those_of_one_process(tmp_path, monkeypatch, network, way):
    monkeypatch.setattr(weights, "PREFETCH_BYTES", 0)
    alone = begun(compiled(network, tmp_path, PIPELINED), data(network), network.parameters())
    expected = taken(alone)
    executable = compiled(network, tmp_path, STREAMING)
    with opened(way, tmp_path, executable, [data(network)], network.parameters()) as machine:
        assert taken(machine) == expected
        assert_same(copied(machine), copied(alone))


def test_the_batches_of_an_order_are_of_these_steps() -> None:
    """An order that starts with the second batch of step 4, and contains the third of step 5."""
    assert list(places(StepOrder(4, 3))) == [(4, 0, True), (5, 0, True), (6, 0, True)]
    order = StepOrder(4, 4, accumulation=AccumulatedBatches(1, (False, True, False, True)))
    assert list(places(order)) == [(4, 1, False), (4, 2, True), (5, 0, False), (5, 1, True)]
