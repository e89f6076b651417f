"""The roles of a job as threads of the test's process, over the real wires."""

import threading
from dataclasses import replace

from csrun.base.errors import CsrunError
from csrun.base.mode import ExecutionMode
from csrun.context import Host
from csrun.runtime.input_log import Feeding
from csrun.runtime.roles import memoryx, streamer, wafer
from csrun.runtime.wire.rendezvous import (
    RunFolder,
    memoryx_names,
    streamer_name,
    take_part,
    wafer_name,
)


def fed_by(streamers: int) -> Feeding:
    """What the chief knows of so many streamers."""
    return Feeding(tuple(map(streamer_name, range(streamers))))


class Peers:
    """The other roles of a job, each a thread of this process, over the real wires.

    The wafers, one a system, are on the chief's machine, the others are on `host`. data: a data
    set, or a list of them. hear: what is to hear of its order, by its number. servers: MemoryX
    tasks.
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
    ) -> None:
        datasets = data if isinstance(data, list) else [data]

        def stream(control):
            return streamer.serve(control, datasets, (), lambda n, told: (hear or {})[n](told))

        roles = {streamer_name(rank): stream for rank in range(streamers)}
        wafers = [wafer_name(system) for system in systems]
        roles |= dict.fromkeys(wafers, wafer.serve)
        if mode is ExecutionMode.WEIGHT_STREAMING:
            roles |= dict.fromkeys(memoryx_names(servers), memoryx.serve)
        self.results, self.errors = {}, {}
        places = {name: replace(folder, host=host) for name in roles}
        places |= dict.fromkeys(wafers, folder)
        self.threads = [
            threading.Thread(
                target=self._play, args=(places[name], name, serve), name=name, daemon=True
            )
            for name, serve in roles.items()
        ]
        for thread in self.threads:
            thread.start()

    def _play(self, folder, name, serve) -> None:
        try:
            self.results[name] = take_part(folder, name, serve)
        except CsrunError as error:
            self.errors[name] = error

    def join(self) -> None:
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
