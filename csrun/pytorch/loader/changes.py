"""Changes of a data set by the script's loop: sent between passes, refused within one."""

from collections.abc import Callable
from typing import Any

from csrun.data.errors import DataError
from csrun.pytorch.loader.dataset_state import (
    Path,
    PathKind,
    Snapshot,
    changed_paths,
    snapshot_of,
    text_of,
)
from csrun.pytorch.loader.iterated import is_iterated, length_of
from csrun.pytorch.loader.patch import apply_patch, patch_of

LEARNING = 3  # fetches that show which attributes the data set itself writes, such as a cache


class DataChanges:
    """Changes of one loader's data set since the last patch sent to the other tasks.

    taken: number of accepted changes.
    patch: encodes all of them, for the data sets of other tasks.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._length = length_of(loader)
        self._start: Snapshot | None = None
        self._last: Snapshot = {}
        self._of_dataset: set[Path] = set()
        self._dirty: set[Path] = set()
        self._fetches = 0
        self.taken = 0
        self.patch = b""

    @property
    def _roots(self) -> dict[str, Any]:
        if is_iterated(self._loader):  # which changes as it is walked
            return {}
        return {"dataset": self._loader.dataset, "collate_fn": self._loader.collate_fn}

    def begin(self) -> None:
        """Take the current state as that of the other tasks."""
        if self._start is None:
            self._start = self._last = snapshot_of(self._roots)

    def found(self) -> list[Path]:
        """Return the paths that have changed since `take`, or since `begin`.

        Raises: DataError where the number of batches has changed
        """
        self.begin()
        if (length := length_of(self._loader)) != self._length:
            raise DataError(
                f"the DataLoader had {self._length} batches and now has {length}: keep "
                "the number of samples, or make another DataLoader"
            )
        paths = changed_paths(self._last, snapshot_of(self._roots))
        return [path for path in paths if _attribute(path) not in self._of_dataset]

    def take(self, paths: list[Path], sends: bool) -> None:
        """Accept changes. sends: other tasks need a patch.

        Raises: DataError for a value that cannot be sent
        """
        assert self._start is not None, "begun"
        self._last = snapshot_of(self._roots)
        self._dirty.update(paths)
        self.taken += 1
        if sends:
            self.patch = patch_of(sorted(self._dirty, key=len), self._start, self._roots)

    def apply(self, patch: bytes) -> None:
        """Apply the chief's changes, in another task."""
        if patch:
            apply_patch(patch, self._roots)

    def fetch_batch(self, fetch: Callable[[], Any]) -> Any:
        """Fetch a batch; attributes that the first fetches change belong to the data set itself."""
        if self._fetches >= LEARNING:
            return fetch()
        self._fetches += 1
        before = snapshot_of(self._roots)
        batch = fetch()
        self._of_dataset.update(map(_attribute, changed_paths(before, snapshot_of(self._roots))))
        return batch


def _attribute(path: Path) -> Path:
    """Return the path of the attribute that holds what a path leads to."""
    while path and path[-1].kind is PathKind.ITEM and len(path) > 1:
        path = path[:-1]
    return path


def describe_changes(paths: list[Path]) -> str:
    """Return the first of some changes, for messages."""
    return f"the data set's {text_of(paths[0][1:]) or 'type'}"
