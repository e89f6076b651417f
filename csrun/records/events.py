"""TensorBoard events."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from itertools import count
from pathlib import Path
from threading import get_ident
from time import time
from types import ModuleType

import numpy as np
import numpy.typing as npt

from csrun.base.files import writing

_numbers = count()  # a file's own name tells seconds apart, no more


class _Missing(MetaPathFinder):
    """Keeps one thread from finding a package."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread = get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if name == self._name and get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def _without(package: str) -> Iterator[None]:
    """In this thread the package seems not to be installed, unless it is imported already.

    tensorboardX imports PyTorch where it is installed, which takes over a second and 200 MB.
    """
    missing = _Missing(package)
    sys.meta_path.insert(0, missing)
    try:
        yield
    finally:
        sys.meta_path.remove(missing)


class EventWriter:
    """Writes `folder`/events.out.tfevents.*; what a call wrote can be read when it returns.

    Of tensorboardX it uses the writer beneath SummaryWriter, which writes through a queue and a
    thread: its flush does not wait for them.
    """

    def __init__(self, folder: Path) -> None:
        # slow to import, and only the chief needs it
        with _without("torch"):
            from tensorboardX.event_file_writer import EventsWriter

        self._folder = folder
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            name = f".{os.getpid()}.{next(_numbers)}"
            self._writer = EventsWriter(str(folder / "events"), name)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write named values at a global step."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        with writing(self._folder):
            for tag, value in values.items():
                event = Event(wall_time=time(), step=step, summary=scalar(tag, value))
                self._writer.write_event(event)
            self._writer.flush()

    def histogram(self, tag: str, values: npt.ArrayLike, step: int) -> None:
        """Write how values are distributed, at a global step."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import histogram

        flat = np.asarray(values, np.float64).reshape(-1)
        event = Event(wall_time=time(), step=step, summary=histogram(tag, flat, bins="auto"))
        with writing(self._folder):
            self._writer.write_event(event)
            self._writer.flush()

    def close(self) -> None:
        try:
            self._writer.close()
        except OSError:  # what could not be written was said then; the file is open still
            with suppress(OSError):
                self._writer._py_recordio_writer.close()
