"""Batches of another library that can be read by their number."""

from dataclasses import dataclass
from typing import Any

from csrun.data.errors import require


@dataclass(frozen=True)
class RandomAccess:
    """Items by number. length: how many there are; None when they never end."""

    items: Any
    length: int | None

    def __getitem__(self, number: int) -> Any:
        """The item of a number; beyond the length, those of a further pass."""
        item = self.items[number]
        rule = "every item must be there to be read by number"
        require(item is not None, f"input_fn: item {number} of the {self.name}", rule, "None")
        return item

    @property
    def name(self) -> str:
        """What its items come from."""
        return type(self.items).__name__
