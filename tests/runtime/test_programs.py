"""Several programs on one store: training, evaluation, and more training, with equal bits."""

import gc
import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from support.jobs import until
from support.programs import ArrayData, Network
from support.running import (
    NETWORK,
    PART,
    PIPELINED,
    SAMPLES,
    SETTINGS,
    STEPS,
    STREAMING,
    TIED,
    WAYS,
    assert_same,
    begun,
    compiled,
    copied,
    data,
    losses_of,
    opened,
    validation,
)

from csrun.base.errors import CsrunError
from csrun.data.delivery import Delivery
from csrun.runtime.chief.machine import Feed
from csrun.runtime.chief.training import step_orders
from csrun.runtime.chief.training.training import Training
from csrun.runtime.chief.training.training_record import LoopOptions
from csrun.runtime.remote import ring
from csrun.runtime.step import weights
from csrun.runtime.wire.messages import StepOrder
from csrun.runtime.wire.ring import ring_slots_for


def alternated(machine, evaluate, begin=True):
    """Train in parts with an evaluation after each: both losses, and the state after each part."""
    trained, evaluated, states = [], [], []
    for first in range(0, STEPS, PART):
        trained += losses_of(machine, first, PART)
        states.append(copied(machine))
        if first and begin:
            evaluate.begin()
        evaluated.append(losses_of(evaluate, 0, 2 * SAMPLES))
    return trained, evaluated, states


CASES = [
    pytest.param(network, mode, prefetch_bytes, way, marks=marks, id=f"{way}, {mode}, {name}")
    for way in WAYS
    for mode, network, name, prefetch_bytes, marks in [
        (PIPELINED, NETWORK, "dense", 0, ()),
        (STREAMING, NETWORK, "dense", 0, ()),
        (STREAMING, TIED, "tied", 0, ()),
        (PIPELINED, TIED, "tied", 0, pytest.mark.slow),
        (STREAMING, NETWORK, "dense, without prefetch", 1 << 30, pytest.mark.slow),
    ]
]


@pytest.mark.parametrize(("network", "mode", "prefetch_bytes", "way"), CASES)
def test_a_training_that_is_evaluated_in_between_is_the_same(
    tmp_path, monkeypatch, network, mode, prefetch_bytes, way
):
    monkeypatch.setattr(weights, "PREFETCH_BYTES", prefetch_bytes)
    programs = compiled(network, tmp_path, mode)
    alone = begun(programs.train, data(network), network.parameters())
    expected = losses_of(alone, 0, STEPS)
    datasets = [data(network), validation(network)]
    with opened(way, tmp_path, programs.train, datasets, network.parameters()) as machine:
        evaluate = machine.load(programs.evaluate, Feed(datasets[1], 1))
        trained, evaluated, states = alternated(machine, evaluate)
    assert trained == expected
    assert_same(copied(alone), states[-1])
    for losses, state in zip(evaluated, states, strict=True):
        resumed = begun(programs.evaluate, validation(network), state)
        assert losses == losses_of(resumed, 0, SAMPLES)
        assert len(losses) == SAMPLES
    assert len({tuple(losses) for losses in evaluated}) == len(states)


def with_short_ones(network, every, rows):
    """Training batches of which every `every`-th has fewer samples, as at the end of a pass."""
    batches = network.batches(STEPS)
    return [
        tuple(array[:rows] for array in batch) if number % every == every - 1 else batch
        for number, batch in enumerate(batches)
    ]


@cache
def torch_losses(network, every, rows):
    """Losses of the same network in PyTorch on batches with short ones."""
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle of short batches")
    parameters = {n: torch.tensor(v, requires_grad=True) for n, v in network.parameters().items()}
    optimizer = torch.optim.SGD(
        parameters.values(), lr=network.learning_rate, momentum=network.momentum
    )
    losses, layers = [], list(parameters.values())
    for features, labels in with_short_ones(network, every, rows):
        x = torch.tensor(features).flatten(1)
        for kernel, bias in zip(layers[0::2], layers[1::2], strict=True):
            x = x @ kernel + bias
            x = torch.relu(x) if kernel is not layers[-2] else x
        loss = torch.nn.functional.cross_entropy(x, torch.tensor(labels).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
@pytest.mark.parametrize("way", WAYS)
def test_a_short_batch_is_a_step_of_a_program_of_its_own(tmp_path, mode, way):
    """PyTorch's losses within float64's rounding; steps between the short ones are one order."""
    network = Network(precision="float64", learning_rate=0.05, momentum=0.9)
    batches = with_short_ones(network, every=6, rows=5)
    train = network.compile(tmp_path, mode, 1)
    losses = []
    with opened(way, tmp_path, train, [ArrayData(batches)], network.parameters()) as machine:
        short = machine.load(replace(network, batch=5).compile(tmp_path, mode, 1), machine)
        for first in range(0, STEPS, 6):
            losses += losses_of(machine, first, 5)
            losses += losses_of(short, first + 5, 1)
    np.testing.assert_allclose(losses, torch_losses(network, 6, 5), rtol=1e-12)


def test_a_program_that_takes_fewer_samples_than_come_is_told_so(tmp_path):
    whole = NETWORK.compile(tmp_path, PIPELINED)
    machine = begun(whole, data(NETWORK), NETWORK.parameters())
    short = machine.load(replace(NETWORK, batch=5).compile(tmp_path, PIPELINED), machine)
    with pytest.raises(CsrunError, match=r"next batch has 16 samples, this program takes 5: run"):
        short.run(StepOrder(0, 1))
    alone = begun(whole, data(NETWORK), NETWORK.parameters())
    assert losses_of(machine, 0, 2) == losses_of(alone, 0, 2)  # no batch was lost


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
@pytest.mark.parametrize("way", WAYS)
def test_any_program_may_run_first(tmp_path, way, mode):
    """The second program's groups differ: all layers are in one."""
    train = compiled(NETWORK, tmp_path, mode).train
    second = compiled(NETWORK, tmp_path, mode, group_bytes=1 << 30).evaluate
    assert mode is PIPELINED or len(second.plan.groups) < len(train.plan.groups)
    datasets, state = [data(NETWORK), validation(NETWORK)], NETWORK.parameters()
    expected = losses_of(begun(second, validation(NETWORK), state), 0, SAMPLES)
    with opened(way, tmp_path, train, datasets, state) as machine:
        evaluate = machine.load(second, Feed(datasets[1], 1))
        assert losses_of(evaluate, 0, SAMPLES) == expected


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_goes_on_behind_a_bad_batch_takes_the_next_one(tmp_path, way):
    train, bad = NETWORK.compile(tmp_path, STREAMING, 1), 7
    batches = NETWORK.batches(STEPS)
    without = ArrayData([batch for number, batch in enumerate(batches) if number != bad])
    expected = losses_of(begun(train, without, NETWORK.parameters()), 0, STEPS)
    features, labels = batches[bad]
    batches[bad] = (np.full_like(features, np.nan), labels)
    with opened(way, tmp_path, train, [ArrayData(batches)], NETWORK.parameters()) as machine:
        done = machine.run(StepOrder(0, STEPS))
        assert (done.done, done.finished) == (bad, False)
        assert np.isnan(done.bad_loss)
        losses = machine.losses(bad) + losses_of(machine, bad, STEPS)
    assert losses == expected


@pytest.mark.parametrize("way", ["in process", "memory 1"])
def test_a_program_takes_no_more_rows_than_another_has(tmp_path, way):
    train = NETWORK.compile(tmp_path, PIPELINED)
    larger = replace(NETWORK, batch=17).compile(tmp_path, PIPELINED)
    message = r"features float32\[16, 2, 6\].*: use separate batches"
    with opened(way, tmp_path, train, [data(NETWORK)], {}) as machine:
        with pytest.raises(CsrunError, match=message):
            machine.load(larger, machine)
        assert len(losses_of(machine, 0, 3)) == 3  # nothing was said to anybody


@pytest.mark.parametrize("way", ["in process", "memory 1", "tcp 1"])
def test_a_program_that_is_too_large_for_the_wafer_is_refused_by_name(tmp_path, way):
    programs, datasets = compiled(NETWORK, tmp_path, PIPELINED), [data(NETWORK)]
    sram = programs.train.plan.arena_bytes
    message = rf"eval program with batch_size 64 needs .* on the wafer .* which has {sram:,}: l"
    with opened(way, tmp_path, programs.train, datasets, {}, sram=sram) as machine:
        with pytest.raises(CsrunError, match=message):
            machine.load(programs.evaluate, Feed(validation(NETWORK), 1))
        assert len(losses_of(machine, 0, 3)) == 3  # nothing was said to anybody


@pytest.mark.parametrize("way", WAYS)
def test_an_evaluation_that_stopped_amid_its_data_begins_anew(tmp_path, way):
    programs = compiled(NETWORK, tmp_path, PIPELINED)
    datasets, first = [data(NETWORK), validation(NETWORK)], NETWORK.parameters()
    whole = losses_of(begun(programs.evaluate, validation(NETWORK), first), 0, SAMPLES)
    with opened(way, tmp_path, programs.train, datasets, first) as machine:
        evaluate = machine.load(programs.evaluate, Feed(datasets[1], 1, first=1, last=4))
        assert losses_of(evaluate, 0, 1) == whole[1:2]
        assert losses_of(evaluate, 1, SAMPLES) == whole[2:4]
        assert evaluate.run(StepOrder(3, 1)).finished  # and it is no wait to ask again
        for _ in range(4):  # more than a ring holds are left behind
            evaluate.begin()
            assert losses_of(evaluate, 0, 2) == whole[:2]
        evaluate.begin(2, 3)
        done = evaluate.run(StepOrder(0, SAMPLES))
        assert (done.done, done.finished) == (1, True)
        assert evaluate.result(0, 0).loss == whole[2]


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
def test_a_run_begins_with_the_step_and_the_batch_that_it_is_given(tmp_path, mode):
    """Dropout and AdamW's bias correction depend on the step, data on the batch."""
    train, found = NETWORK.compile(tmp_path, mode, 1), []
    for way in ("in process", "memory 4"):
        begin, state = {"start": 40, "batch": 3}, NETWORK.parameters()
        with opened(way, tmp_path, train, [data(NETWORK)], state, **begin) as machine:
            found.append((losses_of(machine, 40, STEPS), copied(machine)))
    (expected, state), (losses, other) = found
    assert losses == expected
    assert len(losses) == STEPS - 3
    assert_same(state, other)


def test_a_program_that_takes_its_turn_again_is_ordered_as_before(tmp_path, monkeypatch):
    """One step at first, as its time is unknown; then as many as are due."""
    monkeypatch.setattr(step_orders, "ORDER_S", 1e6)
    train = NETWORK.compile(tmp_path, PIPELINED)
    machine = begun(train, data(NETWORK), NETWORK.parameters())
    programs, counts = (machine, machine.load(train, machine)), []
    options = LoopOptions(tmp_path, 0, 13, 5, 5, 1, {}, 0.0, SETTINGS)
    with Training(machine, options, None, lambda progress: None) as training:
        while not training.is_over:
            training.use(programs[len(counts) % 2])
            counts.append(training.advance().done)
    assert counts == [1, 1, 3, 5, 3]


@pytest.mark.parametrize("way", WAYS)
def test_the_outputs_of_all_steps_of_a_training_are_kept_where_they_are_wanted(tmp_path, way):
    """Equal to those of orders of one step."""
    train, state = NETWORK.compile(tmp_path, STREAMING, 1), NETWORK.parameters()

    def outputs(machine, count):
        return [machine.result(slot, 0).outputs for slot in range(count)]

    alone, expected = begun(train, data(NETWORK), state), []
    for step in range(PART):
        alone.run(StepOrder(step, 1))
        expected += outputs(alone, 1)
    with opened(way, tmp_path, train, [data(NETWORK)], state) as machine:
        machine.run(StepOrder(0, PART, keeps_all=True))
        found = outputs(machine, PART)
    assert len(expected[0]) == 3
    for one, other in zip(expected, found, strict=True):
        assert_same(one, other)


def mapped(*kinds):
    """Number of mappings of each kind in this process, which runs all roles."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return [maps.count(f"csrun-{kind}") for kind in kinds]


@pytest.mark.parametrize(("mode", "servers"), [(PIPELINED, 1), (STREAMING, 1), (STREAMING, 2)])
@pytest.mark.parametrize("way", ["memory 4", "tcp 1"])
def test_a_program_that_is_unloaded_takes_nothing_and_leaves_its_batches(
    tmp_path, way, mode, servers
):
    """The training's program is loaded repeatedly, on the first one's batches."""
    programs = compiled(NETWORK, tmp_path, mode)
    alone = begun(programs.train, data(NETWORK), NETWORK.parameters())
    expected, losses, counts = losses_of(alone, 0, STEPS), [], []
    datasets = [data(NETWORK), validation(NETWORK)]
    jobs = way, tmp_path, programs.train, datasets, NETWORK.parameters()
    with opened(*jobs, servers=servers) as machine:
        train, evaluate = machine, machine.load(programs.evaluate, Feed(datasets[1], 1))
        for first in range(0, STEPS, PART):
            losses += losses_of(train, first, PART)
            assert len(losses_of(evaluate, 0, 2)) == 2
            former, train = (train, evaluate), machine.load(programs.train, train)
            for each in former:
                machine.unload(each)
            evaluate = machine.load(programs.evaluate, Feed(datasets[1], 1))
            del former, each
            assert losses_of(evaluate, 0, 1)  # all peers have let go of the others by now
            files = len(os.listdir("/proc/self/fd")) if way == "memory 4" else 0
            counts.append([*mapped("results", "notes"), files])
    assert losses == expected
    assert counts[1:] == counts[:1] * 2


class Counted(ArrayData):
    """Data set that counts the batches made from it."""

    made = 0

    def deliveries(self, start, stride):
        for delivery in super().deliveries(start, stride):
            self.made += 1
            yield delivery


@pytest.mark.parametrize("way", ["memory 1", "tcp 1"])
def test_a_pass_that_begins_is_made_ahead_while_others_run(tmp_path, way, monkeypatch):
    """As many batches as a ring holds, in the slots of the last pass's."""
    received, publish = [], ring._Ring.publish
    monkeypatch.setattr(
        ring._Ring, "publish", lambda each: (publish(each), received.append(each.source))
    )
    programs = compiled(NETWORK, tmp_path, PIPELINED)
    counted = Counted(replace(NETWORK, batch=4 * NETWORK.batch).batches(STEPS))
    datasets = [data(NETWORK), counted]
    with opened(way, tmp_path, programs.train, datasets, NETWORK.parameters()) as machine:
        evaluate = machine.load(programs.evaluate, Feed(counted, 1))
        slots = ring_slots_for(1, evaluate.plan.inputs)
        assert slots < STEPS
        for number in (1, 2, 3):
            until(lambda n=number: counted.made == n * slots)
            machine.traced()  # a streamer answers when the batch that it makes is in the ring
            if way == "tcp 1":  # or sent: a batch that arrives after the start keeps its slot
                until(lambda n=number: received.count(1) == n * slots)
            evaluate.begin()
            machine.run(StepOrder(0, 1))


class Reversed(ArrayData):
    """Data set whose order is sent: ascending or descending."""

    is_reversed = False

    def hear(self, data_order):
        self.is_reversed = data_order.endswith(b"back")

    def deliveries(self, start, stride):
        batches = self.all[::-1] if self.is_reversed else self.all
        return (Delivery(batch, list) for batch in batches[start::stride])


@pytest.mark.parametrize("way", ["memory 4", "tcp 4"])
def test_streamers_are_told_of_an_order_before_they_make_a_batch_of_it(tmp_path, way):
    """An order of any length, in several messages."""
    programs = compiled(NETWORK, tmp_path, PIPELINED)
    heard, batches = Reversed(validation(NETWORK).all), validation(NETWORK).all
    data_order, first = bytes(150_000) + b"back", NETWORK.parameters()
    whole, back = (
        losses_of(begun(programs.evaluate, ArrayData(order), first), 0, SAMPLES)
        for order in (batches, batches[::-1])
    )
    hear = {1: heard.hear}
    with opened(way, tmp_path, programs.train, [data(NETWORK), heard], first, hear=hear) as machine:
        evaluate = machine.load(programs.evaluate, Feed(heard, 1, data_order=data_order))
        assert losses_of(evaluate, 0, SAMPLES) == back
        evaluate.begin(data_order=b"forth")
        assert losses_of(evaluate, 0, SAMPLES) == whole
        evaluate.begin(1, data_order=data_order)
        assert losses_of(evaluate, 0, SAMPLES) == back[1:]
