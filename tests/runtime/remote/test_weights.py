"""Weights of a remote MemoryX: groups that the wafer caches, and the order of requests."""

import mmap
import threading
from collections import Counter
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from math import ceil

import numpy as np
import pytest
from support.handmade import RATE, make
from support.programs import ArrayData, Network, TiedNetwork, options_of, step_of
from support.wires import altering_pair, tcp_channel_pair

from csrun import nn
from csrun.base.errors import PeerLost
from csrun.base.half_formats import BFLOAT16, FLOAT16
from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.compiler import compile_model
from csrun.executable import Runtime, StepState, state_views, wafer_views
from csrun.executable.store_places import gradients_offset
from csrun.nn.tracer import Tracer
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.remote.state import REQUEST, SentState
from csrun.runtime.remote.store import ORDER, ChannelPort, StoreLink, StoreRequest
from csrun.runtime.remote.weights import GradientMemory, RemoteMemoryxLink, RemoteWeights
from csrun.runtime.roles import memoryx
from csrun.runtime.step.engine import make_compute
from csrun.runtime.step.placed_program import PlacedProgram
from csrun.runtime.store.store_initialization import initialize
from csrun.runtime.store.tensors import stored_state
from csrun.runtime.wire.channel import channel_pair
from csrun.runtime.wire.messages import LoadStore, ReadState, StepOrder, Stop, StoreReady
from csrun.runtime.wire.shared import Waiter
from csrun.runtime.wire.tcp import SUM, ConnectionPurpose, DamagedTransferError


@pytest.fixture
def remote_run(tmp_path):
    """A wafer's weights and arena, the chief's view of the state, and its channel to MemoryX."""
    with connected(make(tmp_path / "exe", ExecutionMode.WEIGHT_STREAMING)) as ends:
        yield ends


@contextmanager
def connected(executable, sender=None, altered=0, errors=None, line=ConnectionPurpose.BULK):
    """The same for any Executable.

    sender: memoryx or another peer with a byte altered in transit. errors: of MemoryX.
    """
    plan = executable.plan
    chief, control = tcp_channel_pair("memoryx", "chief")
    wafer_chief, wafer_control = channel_pair("wafer", "chief")
    arena = np.zeros(plan.arena_bytes, np.uint8)
    with ExitStack() as stack:
        for end in (control, wafer_chief, wafer_control):
            stack.enter_context(closing(end))
        if sender is not None:
            ends = (chief, control) if sender == "memoryx" else (control, chief)
            for channel, end in zip(ends, stack.enter_context(altering_pair(altered)), strict=True):
                channel.lines[line].close()
                channel.lines[line] = end
        thread = threading.Thread(target=_serve, args=(control, [] if errors is None else errors))
        thread.start()
        stack.callback(thread.join)
        stack.enter_context(closing(chief))
        chief.send(_load_store(executable, RunSettings(seed=1)))
        chief.expect(StoreReady)
        link = stack.enter_context(closing(StoreLink(chief.bulk.dup())))
        memory = GradientMemory(plan.store.nbytes)
        waiters = (Waiter(counter, wafer_control) for counter in (link.arrived, link.sent))
        ends = [RemoteMemoryxLink(link, *waiters)]
        weights = RemoteWeights(plan, arena, memory, ends, [0] * len(plan.groups))
        yield plan, weights, arena, memory, stored_state(plan, ChannelPort(chief)), chief


def _load_store(executable, settings):
    return LoadStore(str(executable.directory), executable.digest, executable.plan.store, settings)


def _serve(control, errors) -> None:
    try:
        memoryx.serve(control)
    except (PeerLost, RuntimeError, DamagedTransferError) as error:
        errors.append(error)
        control.close()


def slot_of(plan, arena, group):
    place = plan.groups[group]
    return arena[place.slot_offset_bytes :][: place.nbytes].view("f")


def test_the_state_is_written_and_read_as_arrays_are(remote_run):
    plan, _, _, _, state, chief = remote_run
    shapes = {p.name: p.shape for p in plan.parameters}
    assert {name: (t.shape, t.nbytes, t.dtype.name) for name, t in state.items()} == {
        name: (shape, 4 * shape[0] * shape[1], "float32") for name, shape in shapes.items()
    }
    first = np.arange(24, dtype="f").reshape(3, 8)
    state["first/kernel"][...] = first
    state["second/kernel"][...] = 7
    state["second/kernel"].reshape(-1)[3:5][...] = [1, 2]
    np.testing.assert_array_equal(np.asarray(state["first/kernel"]), first, strict=True)
    assert np.asarray(state["second/kernel"]).ravel().tolist() == [7, 7, 7, 1, 2, *[7] * 11]
    chief.send(Stop({}))


def test_a_fetch_behind_gradients_gets_the_update(remote_run):
    plan, weights, arena, memory, state, chief = remote_run
    state["first/kernel"][...] = 1
    state["second/kernel"][...] = 2
    offset = plan.store.gradients_offset
    for step in range(1, 4):
        for group in (0, 1):
            weights.enter(group)
            expected = group + 1 - (step - 1) * RATE * 10 * (group + 1)
            np.testing.assert_allclose(slot_of(plan, arena, group), expected, rtol=1e-6)
        for visit, group in ((2, 1), (3, 0)):
            weights.enter(visit)
            place = plan.groups[group]
            gradients = memory.bytes[offset + place.gradients_offset_bytes :][: place.nbytes]
            gradients.view("f")[...] = 10 * (group + 1)
            weights.deliver(group, StepState())
        weights.settle()
        first = np.asarray(state["first/kernel"])
        np.testing.assert_allclose(first, 1 - step * RATE * 10, rtol=1e-6)
    chief.send(Stop({}))


def test_clipped_gradients_wait_for_the_last_ones(tmp_path):
    """By the formula: w - rate * g / |g|, with the norm of all gradients."""
    network = Network((8, 8, 8, 8), optimizer=nn.SGD(RATE, clip_norm=1.0))
    executable = network.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, 1)
    with connected(executable) as (plan, weights, _, memory, state, chief):
        views = wafer_views(plan, np.zeros(plan.arena_bytes, np.uint8), memory.bytes)
        count = sum(tensor.size for tensor in state.values())
        assert len(plan.deliveries) == 3
        for step in range(1, 3):
            for number, visit in enumerate(plan.visits):
                weights.enter(number)
                for group in visit.completes:
                    for name in state:
                        views[f"gradient:{name}"][...] = 10
                    weights.settle()
                    done = -RATE * (step - 1) / np.sqrt(count)
                    np.testing.assert_allclose(np.asarray(state["dense/kernel"]), done, rtol=1e-5)
                    weights.deliver(group, StepState())
            weights.settle()
            for name in state:
                expected = -RATE * step / np.sqrt(count)
                np.testing.assert_allclose(np.asarray(state[name]), expected, rtol=1e-5)
        chief.send(Stop({}))


@pytest.mark.parametrize("optimizer", [nn.Adam(0.01), nn.Lamb(0.01, clip_norm=0.5)])
@pytest.mark.parametrize("sizes", [(12, 12, 12, 12), (30, 8, 8, 30), (30, 8, 8, 8, 30)])
def test_a_remote_tied_weight_trains_to_the_same_bits(tmp_path, monkeypatch, sizes, optimizer):
    """Its group is fetched three times per step, next to others; compared with a single process.

    Partial gradients are added before they are sent.
    """
    send, sent = StoreLink.send_gradients, Counter()

    def counted(link, group, *arguments):
        sent[group] += 1
        send(link, group, *arguments)

    monkeypatch.setattr(StoreLink, "send_gradients", counted)
    network = TiedNetwork(sizes, optimizer=optimizer)
    executable = network.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, 1)
    batches = network.batches(8)
    here = CpuMachine(executable, ArrayData(batches), RunSettings(seed=1), 0)
    with connected(executable) as (plan, weights, arena, memory, state, chief):
        for name, value in network.parameters().items():
            here.state[name][...] = state[name][...] = value
        compute = make_compute(PlacedProgram(executable, arena, memory.bytes, Runtime(1)), weights)
        losses = [
            compute.run(batch, step_of(plan, batch, network.batch, index))
            for index, batch in enumerate(batches)
        ]
        weights.settle()
        assert here.run(StepOrder(0, len(batches))).done == len(batches)
        assert sent == dict.fromkeys(plan.deliveries, len(batches))
        assert losses == [here.result(i, i).loss * network.batch for i in range(len(batches))]
        for name, array in here.state.items():
            np.testing.assert_array_equal(np.asarray(state[name]), array, err_msg=name)
        chief.send(Stop({}))


@pytest.mark.parametrize(("storage", "size"), [(None, 4), (FLOAT16, 2), (BFLOAT16, 2)])
def test_bytes_on_the_wire(tmp_path, monkeypatch, storage, size):
    """Bytes per number for each transfer of a group or its gradients."""
    request, send = StoreLink.request, StoreLink.send_gradients
    times, nbytes = Counter(), Counter()

    def counted(link, order, group, reply, *more):
        if order is StoreRequest.FETCH:
            times["come", group] += 1
            nbytes["come", group] += reply.nbytes
        request(link, order, group, reply, *more)

    def left(link, group, step, gradients, sent):
        times["left", group] += 1
        nbytes["left", group] += gradients.nbytes
        send(link, group, step, gradients, sent)

    monkeypatch.setattr(StoreLink, "request", counted)
    monkeypatch.setattr(StoreLink, "send_gradients", left)
    sizes = (32, 48, 16, 64, 32)
    network = Network(sizes, storage=storage)
    executable = network.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, 1)
    with connected(executable) as (plan, weights, arena, memory, state, chief):
        for name, value in network.parameters().items():
            state[name][...] = value
        compute = make_compute(PlacedProgram(executable, arena, memory.bytes, Runtime(1)), weights)
        for index, batch in enumerate(network.batches(3)):
            compute.run(batch, step_of(plan, batch, network.batch, index))
        weights.settle()
        chief.send(Stop({}))
    numbers = [rows * columns + columns for rows, columns in pairwise(sizes)]
    assert {group for _, group in times} == set(range(len(numbers)))
    assert all(times["left", group] == 3 for group in range(len(numbers)))
    expected = {key: size * count * numbers[key[1]] for key, count in times.items()}
    assert nbytes == expected


def normed_network(storage=None, units=7):
    """Two layers, each with a batch norm, whose states are written in the forward pass."""
    with Tracer("float32", storage) as tracer:
        x = nn.flatten(tracer.input("features", (16, 2, 6), "float32"))
        labels = tracer.input("labels", (16,), "int32")
        for each in (units, 9):
            x = nn.relu(nn.BatchNorm()(nn.Dense(each)(x)))
        loss = nn.softmax_cross_entropy(nn.Dense(5)(x), labels)
        return tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1, momentum=0.9).minimize(loss), [])


@pytest.mark.parametrize("units", [7, 300])  # so few that they share a row of a checksum, and more
@pytest.mark.parametrize("storage", [None, FLOAT16, BFLOAT16])
def test_running_statistics_are_the_same_bits_afar(tmp_path, storage, units):
    options = options_of(ExecutionMode.WEIGHT_STREAMING, group_bytes=1)
    executable = compile_model(normed_network(storage, units), tmp_path, options).executable
    batches = Network().batches(8)
    here = CpuMachine(executable, ArrayData(batches), RunSettings(seed=1), 0)
    initialize(executable.plan, here.state, 1)
    first = {name: value.copy() for name, value in here.state.items()}
    with connected(executable) as (plan, weights, arena, memory, state, chief):
        for name, value in first.items():
            state[name][...] = value
        compute = make_compute(PlacedProgram(executable, arena, memory.bytes, Runtime(1)), weights)
        for index, batch in enumerate(batches):
            compute.run(batch, step_of(plan, batch, 16, index))
        weights.settle()
        assert here.run(StepOrder(0, len(batches))).done == len(batches)
        for name, array in here.state.items():
            np.testing.assert_array_equal(np.asarray(state[name]), array, err_msg=name)
            assert not np.array_equal(array, first[name])
        chief.send(Stop({}))


@pytest.mark.parametrize("systems", [1, 4])
def test_of_several_systems_the_sums_of_gradients_take_memory(tmp_path, systems):
    """As much as those of one system, and a line of 64 bytes for the parts of the loss."""
    sizes, options = (12, 40, 30, 5), {"group_bytes": 1, "systems": systems}
    network = Network(sizes, 16 // systems, optimizer=nn.AdamW(0.01, clip_norm=1.0))
    streaming = options_of(ExecutionMode.WEIGHT_STREAMING, **options)
    executable = compile_model(network.trace(), tmp_path, streaming).executable
    chief, control = tcp_channel_pair("memoryx", "chief")
    with closing(chief), closing(control):
        thread = threading.Thread(target=_serve, args=(control, []))
        thread.start()
        chief.send(_load_store(executable, RunSettings()))
        ready, _ = chief.expect(StoreReady)
        chief.send(Stop({}))
        thread.join()
    values = sum(
        64 * ceil(n / 16) for fan_in, units in pairwise(sizes) for n in (fan_in * units, units)
    )
    assert ready.nbytes == 4 * values + 64 * (systems > 1)


def test_a_lost_memoryx_is_peer_lost(remote_run):
    _, weights, _, _, _, chief = remote_run
    chief.close()
    with pytest.raises(PeerLost, match="memoryx"):
        for _ in range(100):
            weights.enter(0)
            weights.deliver(0, StepState())


@pytest.mark.parametrize("byte", [5, 96, 104, 113], ids=["a value", "a time", "a sum", "another"])
def test_altered_weights_are_not_computed_with(tmp_path, byte):
    """The first group has 96 bytes."""
    executable = make(tmp_path / "exe", ExecutionMode.WEIGHT_STREAMING)
    with connected(executable, "memoryx", byte) as (_, weights, *_, chief):
        with pytest.raises(DamagedTransferError, match="weights from memoryx arrived corrupted"):
            for visit in (0, 1):
                weights.enter(visit)
        chief.send(Stop({}))


ORDERS_BYTES = 4 * (ORDER.size + SUM.size)  # a fetch or two, gradients; their bytes are more


@pytest.mark.parametrize(("byte", "what"), [(3, "orders"), (ORDERS_BYTES, "gradients")])
def test_altered_gradients_are_no_update(tmp_path, byte, what):
    executable, errors = make(tmp_path / "exe", ExecutionMode.WEIGHT_STREAMING), []
    with (
        connected(executable, "wafer", byte, errors) as (_, weights, *_),
        pytest.raises(PeerLost, match="memoryx"),
    ):
        for _ in range(100):
            weights.enter(0)
            weights.deliver(0, StepState())
    (error,) = errors
    assert str(error).startswith(f"{what} from the wafer arrived corrupted: ")


ASK_BYTES = REQUEST.size + SUM.size


@pytest.mark.parametrize(
    "byte",
    [0, ASK_BYTES - 1, ASK_BYTES, 2 * ASK_BYTES - 5],
    ids=["hold", "its sum", "send", "which tensor"],
)
def test_an_altered_checkpoint_order_ends_memoryx(tmp_path, byte):
    """The chief only detects the loss, and does not wait."""
    executable, errors = make(tmp_path / "exe", ExecutionMode.WEIGHT_STREAMING), []
    with connected(executable, "chief", byte, errors, ConnectionPurpose.STATE) as (
        plan,
        weights,
        *_,
        chief,
    ):
        sent = SentState(plan, None, chief)
        with pytest.raises(PeerLost, match="memoryx"):
            for tensor in sent.hold().values():
                list(tensor.make())
        weights.enter(1)
        weights.deliver(1, StepState())
        weights.settle()
    (error,) = errors
    assert str(error).startswith("orders of a checkpoint from the chief arrived corrupted: ")


def test_the_chief_may_not_reach_beyond_the_store(remote_run):
    plan, *_, chief = remote_run
    chief.send(ReadState(plan.store.nbytes - 4, 8))
    with pytest.raises(PeerLost):
        chief.receive_array(np.empty(8, np.uint8))


def test_gradients_that_have_left_take_no_memory():
    page = mmap.PAGESIZE
    memory = GradientMemory(4 * page)
    memory.bytes[:] = 1
    memory.free_pages(page // 2, 3 * page)  # pages 1 and 2 are whole
    assert memory.bytes[:page].all()
    assert not memory.bytes[page : 3 * page].any()
    assert memory.bytes[3 * page :].all()


def test_large_gradients_are_given_back(remote_run, monkeypatch):
    plan, weights, _, memory, state, chief = remote_run
    monkeypatch.setattr("csrun.runtime.remote.weights.PREFETCH_BYTES", 1)
    given = []
    monkeypatch.setattr(memory, "free_pages", lambda *place: given.append(place))
    weights.enter(1)
    weights.deliver(1, StepState())
    weights.settle()
    place = plan.groups[1]
    offset = plan.store.gradients_offset + place.gradients_offset_bytes
    assert given == [(offset, place.nbytes)]
    assert state_views(plan, memory.bytes).keys() == state.keys()
    chief.send(Stop({}))


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_small_gradients_are_given_back_where_all_have_places(tmp_path, monkeypatch, clip_norm):
    """Unclipped gradients reuse one another's memory, except for those written by two visits."""
    network = Network((8, 8, 8, 8, 8), optimizer=nn.SGD(RATE, clip_norm=clip_norm))
    executable = network.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, 1)
    with connected(executable) as (plan, weights, _, memory, _, chief):
        given = []
        monkeypatch.setattr(memory, "free_pages", lambda *place: given.append(place))
        for number, visit in enumerate(plan.visits):
            weights.enter(number)
            for group in visit.completes:
                weights.deliver(group, StepState())
        weights.settle()
        places = {gradients_offset(plan, plan.groups[group]) for group in plan.deliveries}
        assert {offset for offset, _ in given} == (places if clip_norm else set())
        assert len(places) == (4 if clip_norm else 3)
        chief.send(Stop({}))
