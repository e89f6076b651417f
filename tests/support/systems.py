"""Jobs of threads of several CS systems, on one machine or with MemoryX on others."""

from contextlib import contextmanager
from dataclasses import replace

from support.programs import options_of
from support.roles import Peers, fed_by, swarmx_names
from support.running import SETTINGS, begun_by

from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.context import Host
from csrun.context.broadcast_tree import swarmx_tasks
from csrun.runtime.chief.clients.peers import RunRequest
from csrun.runtime.wire.rendezvous import RunFolder, memoryx_names


def compiled(network, folder, systems, run_mode=RunMode.TRAIN, micro_batches=1, **options):
    """A network whose batch is that of all systems."""
    part = replace(network, batch=network.batch // systems // micro_batches)
    options = options_of(
        ExecutionMode.WEIGHT_STREAMING,
        run_mode,
        group_bytes=1,
        systems=systems,
        micro_batches=micro_batches,
        **options,
    )
    return compile_model(part.trace(run_mode), folder, options).executable


@contextmanager
def machine_of(
    executable, folder, datasets, state, wire="memory", servers=1, streamers=2, settings=SETTINGS
):
    """A job of threads with as many wafers as the Executable is for; servers: MemoryX tasks."""
    count = executable.plan.systems
    systems = tuple(f"cs{n}" for n in range(count))
    relays = swarmx_tasks(count) if wire == "tcp" else 0
    hosts = [Host(f"node{n}", f"127.0.0.{n}") for n in (1, 2)]
    here, there = hosts if wire == "tcp" else (None, None)
    run = RunFolder(folder / "run", "1", b"secret", host=here)
    peers = Peers(
        run, datasets, streamers, executable.plan.mode, there,
        servers=servers, systems=systems, relays=relays,
    )  # fmt: skip
    names = {"memoryx": memoryx_names(servers), "swarmx": swarmx_names(servers, relays)}
    request = RunRequest(executable, settings, 0, None, fed_by(streamers), systems, 9, **names)
    with begun_by(peers, run, request, state) as machine:
        yield machine
