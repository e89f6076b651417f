"""Roles of a job as threads of the test's process, over real connections."""

import threading
from dataclasses import replace

from csrun.base.errors import CsrunError
from csrun.base.mode import ExecutionMode
from csrun.context import Host
from csrun.runtime.input_log import Feeding
from csrun.runtime.roles import memoryx, streamer, swarmx, wafer
from csrun.runtime.wire.rendezvous import (
    RunFolder,
    join_run,
    memoryx_names,
    streamer_name,
    swarmx_name,
    wafer_name,
)


def fed_by(streamers: int) -> Feeding:
    """Streamers as the chief knows them."""
    return Feeding(tuple(map(streamer_name, range(streamers))))


def swarmx_names(servers: int, relays: int) -> tuple[str, ...]:
    """Names of this many SwarmX tasks, whose ranks follow MemoryX's."""
    return tuple(map(swarmx_name, range(1 + servers, 1 + servers + relays)))


class Peers:
    """The other roles of a job, each a thread of this process, over the real wires.

    The wafers, one a system, are on the chief's machine, the others are on `host`. data: a data
    set, or a list of them. hear: what is to hear of its order, by its number. servers: MemoryX
    tasks. relays: SwarmX tasks, each on a separate machine.
    """

    def __init__(
        self,
        folder: RunFolder,
        data,
        streamers: int,
        mode: ExecutionMode,
        host: Host | None = None,
        hear=None,
        servers: int = 1,
        systems=("cs",),
        relays: int = 0,
    ) -> None:
        datasets = data if isinstance(data, list) else [data]

        def stream(control):
            return streamer.serve(control, datasets, (), lambda n, told: (hear or {})[n](told))

        roles = {streamer_name(rank): stream for rank in range(streamers)}
        wafers = [wafer_name(system) for system in systems]
        roles |= dict.fromkeys(wafers, wafer.serve)
        if mode is ExecutionMode.WEIGHT_STREAMING:
            roles |= dict.fromkeys(memoryx_names(servers), self._update)
        roles |= dict.fromkeys(swarmx_names(servers, relays), self._relay)
        self.results, self.errors = {}, {}
        places = {name: replace(folder, host=host) for name in roles}
        places |= dict.fromkeys(wafers, folder)
        for number, name in enumerate(swarmx_names(servers, relays)):
            own = Host(f"relay{number}", f"127.0.1.{1 + number}")
            places[name] = replace(folder, host=own)
        self._places = places
        self.threads = [
            threading.Thread(
                target=self._run_role, args=(places[name], name, serve), name=name, daemon=True
            )
            for name, serve in roles.items()
        ]
        for thread in self.threads:
            thread.start()

    def _update(self, control):
        return memoryx.serve(control, self._places[threading.current_thread().name])

    def _relay(self, control):
        name = threading.current_thread().name
        return swarmx.serve(control, self._places[name], name)

    def _run_role(self, folder, name, serve) -> None:
        try:
            self.results[name] = join_run(folder, name, serve)
        except CsrunError as error:
            self.errors[name] = error

    def join(self) -> None:
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
