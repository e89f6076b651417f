"""How an error names a batch, its samples, and one row of it."""

from dataclasses import dataclass

from csrun.data.delivery import Delivery
from csrun.data.errors import WholeBatch, text_of


@dataclass(frozen=True)
class BatchName:
    """Global batch `index` of a run, of `size` rows when it is whole."""

    index: int
    size: int
    delivery: Delivery

    def __str__(self) -> str:
        return f"batch {self.index}"

    def with_samples(self, rows: int) -> str:
        """With the samples of the run that it has."""
        first = self.index * self.size
        return f"batch {self.index} (samples {first} to {first + rows - 1} of the run)"

    def row(self, row: int, rows: int) -> str:
        """One row of so many, with its sample as the source names it, if that knows its rows."""
        origins = self.delivery.origins()
        sample = f"sample {self.index * self.size + row} of the run"
        if len(origins) == rows and not isinstance(origins[0], WholeBatch):
            sample = text_of(origins[row])
        return f"batch {self.index}, row {row} ({sample})"
