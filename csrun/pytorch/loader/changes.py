"""Changes that a script's loop makes to a data set: found between passes, refused within one."""

from collections.abc import Callable
from typing import Any

from csrun.data.errors import DataError
from csrun.pytorch.loader.dataset_state import (
    Kind,
    Path,
    Snapshot,
    changed_paths,
    snapshot_of,
    text_of,
)
from csrun.pytorch.loader.patch import apply_patch, patch_of

LEARNING = 3  # fetches that show which attributes the data set itself writes, such as a cache


class DataChanges:
    """What has changed of one loader's data since the script's other tasks have it.

    taken: how often changes were. patch: brings a copy of the start to what the data was then, the
    last time.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._length = len(loader)
        self._start: Snapshot | None = None
        self._last: Snapshot = {}
        self._own: set[Path] = set()
        self._dirty: set[Path] = set()
        self._fetches = 0
        self.taken = 0
        self.patch = b""

    @property
    def _roots(self) -> dict[str, Any]:
        return {"dataset": self._loader.dataset, "collate_fn": self._loader.collate_fn}

    def begin(self) -> None:
        """What is there now is what the other tasks have."""
        if self._start is None:
            self._start = self._last = snapshot_of(self._roots)

    def found(self) -> list[Path]:
        """The paths that have changed since `take`, or since `begin`.

        Raises: DataError where the number of batches is another
        """
        self.begin()
        if len(self._loader) != self._length:
            raise DataError(
                f"the DataLoader had {self._length} batches and now has {len(self._loader)}: keep "
                "the number of samples, or make another DataLoader"
            )
        paths = changed_paths(self._last, snapshot_of(self._roots))
        return [path for path in paths if _attribute(path) not in self._own]

    def take(self, paths: list[Path], sends: bool) -> None:
        """These changes count from now on. sends: other tasks must be told.

        Raises: DataError for what cannot be sent
        """
        assert self._start is not None, "begun"
        self._last = snapshot_of(self._roots)
        self._dirty.update(paths)
        self.taken += 1
        if sends:
            self.patch = patch_of(sorted(self._dirty, key=len), self._start, self._roots)

    def adopt(self, patch: bytes) -> None:
        """In another task: change the data as the chief's loop has."""
        if patch:
            apply_patch(patch, self._roots)

    def fetched(self, fetch: Callable[[], Any]) -> Any:
        """A batch; what making the first few has changed is the data set's own affair."""
        if self._fetches >= LEARNING:
            return fetch()
        self._fetches += 1
        before = snapshot_of(self._roots)
        batch = fetch()
        self._own.update(map(_attribute, changed_paths(before, snapshot_of(self._roots))))
        return batch


def _attribute(path: Path) -> Path:
    """The attribute that holds what a path leads to."""
    while path and path[-1].kind is Kind.ITEM and len(path) > 1:
        path = path[:-1]
    return path


def described(paths: list[Path]) -> str:
    """The first of some changes, for messages."""
    return f"the data set's {text_of(paths[0][1:]) or 'type'}"
