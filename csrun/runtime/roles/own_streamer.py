"""A chief that is the only task of its job streams as well: a streamer in a thread of its own."""

import threading
from types import TracebackType

from csrun.base.errors import PeerLost
from csrun.data import Dataset
from csrun.runtime.roles.names import streamer_name
from csrun.runtime.roles.peer import take_part
from csrun.runtime.roles.streamer import serve
from csrun.runtime.wire.rendezvous import RunFolder


class OwnStreamer:
    """Runs the streamer of rank 0 while the context lasts.

    What goes wrong in it reaches the chief as a lost peer; leaving the context raises the error
    itself instead.
    """

    def __init__(self, folder: RunFolder, dataset: Dataset) -> None:
        self._error: BaseException | None = None
        self._folder, self._dataset = folder, dataset
        self._thread = threading.Thread(target=self._run, name="streamer", daemon=True)

    def _run(self) -> None:
        try:
            take_part(self._folder, streamer_name(0), lambda channel: serve(channel, self._dataset))
        except BaseException as error:
            self._error = error

    def __enter__(self) -> "OwnStreamer":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.join()
        lost = error is None or isinstance(error, PeerLost)
        if self._error is not None and not isinstance(self._error, PeerLost) and lost:
            raise self._error
