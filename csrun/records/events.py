"""TensorBoard events."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.abc import MetaPathFinder
from itertools import count
from pathlib import Path
from socket import gethostname
from threading import get_ident
from time import time
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from csrun.base.files import create_new, make_folder, writing
from csrun.base.open_folder import open_folder

if TYPE_CHECKING:
    from tensorboardX.proto.event_pb2 import Event

_numbers = count()  # a file's name has a resolution of one second


class _Missing(MetaPathFinder):
    """Import hook that hides a package from one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread = get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if name == self._name and get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def hide_package(package: str) -> Iterator[None]:
    """Make a package appear not installed to this thread, unless it is already imported.

    tensorboardX imports PyTorch if it is installed, which takes over a second and 200 MB.
    """
    missing = _Missing(package)
    sys.meta_path.insert(0, missing)
    try:
        yield
    finally:
        sys.meta_path.remove(missing)


class EventWriter:
    """Writer of events.out.tfevents.* in model_dir, or in its folder `run`.

    Data of a call can be read when it returns. Only tensorboardX's record writer is used:
    SummaryWriter has a queue and a thread, which its flush does not wait for, and opens a file with
    a predictable name, through a link as well.
    """

    def __init__(self, model_dir: Path, run: str = "") -> None:
        # slow import, only needed by the chief
        with hide_package("torch"):
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.record_writer import RecordWriter

        self._folder = model_dir / run
        started = time()
        name = f"events.out.tfevents.{int(started)}.{gethostname()}.{os.getpid()}.{next(_numbers)}"
        with writing(self._folder), ExitStack() as opened:
            place = opened.enter_context(open_folder(self._folder)) if run else model_dir
            make_folder(place)
            descriptor = create_new(place / name)
            opened.callback(os.close, descriptor)
            self._writer = RecordWriter(f"/proc/self/fd/{descriptor}")  # the file created above
            self._write(Event(wall_time=started, file_version="brain.Event:2"))
            self._writer.flush()

    def _write(self, event: "Event") -> None:
        self._writer.write(event.SerializeToString())

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write named values at a global step."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        with writing(self._folder):
            for tag, value in values.items():
                event = Event(wall_time=time(), step=step, summary=scalar(tag, value))
                self._write(event)
            self._writer.flush()

    def histogram(self, tag: str, values: npt.ArrayLike, step: int) -> None:
        """Write a histogram of values at a global step."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import histogram

        flat = np.asarray(values, np.float64).reshape(-1)
        event = Event(wall_time=time(), step=step, summary=histogram(tag, flat, bins="auto"))
        with writing(self._folder):
            self._write(event)
            self._writer.flush()

    def close(self) -> None:
        with suppress(OSError):  # a failed write was reported when it happened
            self._writer.close()
