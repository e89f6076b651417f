"""Programs of a small network, run in one process or as a job of threads."""

from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from support.programs import ArrayData, Network, TiedNetwork
from support.roles import Peers, fed_by

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.context import Host
from csrun.runtime.chief.clients.peers import RunPeers, RunRequest
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.wire.messages import StepOrder
from csrun.runtime.wire.rendezvous import RunFolder, memoryx_names

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
SETTINGS = RunSettings(seed=9)
NETWORK = Network(sizes=(12, 40, 30, 5), dropout=0.3, optimizer=nn.AdamW(0.01))
TIED = TiedNetwork((30, 12, 12, 12, 30), dropout=0.2, optimizer=nn.Adam(0.01, clip_norm=0.5))
PART, STEPS, SAMPLES = 20, 60, 5


def data(network, count=STEPS):
    return ArrayData(network.batches(count))


def validation(network):
    """Validation batches, the last one incomplete."""
    *whole, last = replace(network, batch=4 * network.batch).batches(SAMPLES)
    return ArrayData([*whole, tuple(array[:7] for array in last)])


@dataclass
class Compiled:
    """Programs of a network; the evaluation's larger batches need a larger arena."""

    train: object
    evaluate: object


def compiled(network, folder, mode, group_bytes=1):
    larger = replace(network, batch=4 * network.batch)
    return Compiled(
        network.compile(folder, mode, group_bytes),
        larger.compile(folder, mode, group_bytes, RunMode.EVAL),
    )


def begun(executable, dataset, state=None):
    """Machine with the state of a checkpoint, or with a network's first one."""
    machine = CpuMachine(executable, dataset, SETTINGS, 0)
    fill(machine, state)
    return machine


def fill(machine, state):
    for name, array in machine.state.items():
        array[...] = state.get(name, 0)


def copied(machine):
    return {name: np.array(array) for name, array in machine.state.items()}


def losses_of(program, first, count):
    done = program.run(StepOrder(first, count))
    return [program.result(i, first + i).loss for i in range(done.done)]


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(right[name], array, err_msg=name, strict=True)


WAYS = ["in process", "memory 1", "memory 4", "tcp 1", "tcp 4"]


@contextmanager
def opened(
    way, folder, executable, datasets, state, start=0, hear=None, batch=None, sram=None, servers=1
):
    """A machine of a process or of a job, with this many streamers over memory or TCP.

    sram: bytes that the wafer has; None for any number. servers: MemoryX tasks of a job
    """
    if way == "in process":
        first = start if batch is None else batch
        machine = CpuMachine(executable, datasets[0], SETTINGS, first, sram)
        fill(machine, state)
        yield machine
        return
    wire, streamers = way.split()
    hosts = [Host(f"node{n}", f"127.0.0.{n}") for n in (1, 2)]
    here, there = hosts if wire == "tcp" else (None, None)
    run = RunFolder(folder / "run", "1", b"secret", host=here)
    peers = Peers(run, datasets, int(streamers), executable.plan.mode, there, hear, servers)
    fed, more = fed_by(int(streamers)), {"batch": batch, "memoryx": memoryx_names(servers)}
    request = RunRequest(executable, SETTINGS, start, None, fed, ("cs",), 9, sram, **more)
    with begun_by(peers, run, request, state) as machine:
        yield machine


@contextmanager
def begun_by(peers, run, request, state):
    """Machine of a job of threads, which must end without an error."""
    with RunPeers(run) as cluster:
        machine = cluster.start(request, lambda: None, lambda text: None)
        fill(machine, state)
        yield machine
        machine.close({})
    peers.join()
    assert peers.errors == {}
