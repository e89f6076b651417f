"""TensorBoard events."""

import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from time import time

import numpy as np
import numpy.typing as npt

from csrun.records.disk import writing

_numbers = count()  # a file's own name tells seconds apart, no more


class EventWriter:
    """Writes model_dir/events.out.tfevents.*; what a call wrote can be read when it returns.

    Of tensorboardX it uses the writer beneath SummaryWriter, which writes through a queue and a
    thread: its flush does not wait for them.
    """

    def __init__(self, model_dir: Path) -> None:
        # slow to import, and only the chief needs it
        from tensorboardX.event_file_writer import EventsWriter

        self._folder = model_dir
        with writing(model_dir):
            name = f".{os.getpid()}.{next(_numbers)}"
            self._writer = EventsWriter(str(model_dir / "events"), name)

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
        """Close the file."""
        self._writer.close()
