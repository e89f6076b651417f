"""TensorBoard events."""

from collections.abc import Mapping
from pathlib import Path


class EventWriter:
    """Writes model_dir/events.out.tfevents.*; every call is on disk when it returns."""

    def __init__(self, model_dir: Path) -> None:
        from tensorboardX import SummaryWriter  # slow to import, and only the chief needs it

        self._writer = SummaryWriter(str(model_dir), flush_secs=3600)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write named values at a global step."""
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
