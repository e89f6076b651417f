"""Finding, checking and reading checkpoints."""

import logging
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from csrun.base import stored
from csrun.base.errors import CsrunError, UsageError
from csrun.base.files import open_regular, read_file
from csrun.base.half_formats import SCALE_TENSORS
from csrun.records import tensor_files
from csrun.records.checkpoints import folder_files
from csrun.records.checkpoints.folder_files import Array
from csrun.records.checkpoints.optimizer_state import slot_tensors, slots_of
from csrun.records.tensor_files import bytes_of

log = logging.getLogger("csrun")

SHOWN_DIFFERENCES = 12  # names in a log line
SHOWN_NAMES = 8


class CheckpointDamagedError(Exception):
    """Damaged files of a checkpoint; the reader converts it to a CsrunError."""


class CheckpointRemovedError(CheckpointDamagedError):
    """The file of a checkpoint's tensors is missing."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files exist; its tensors are verified when they are read."""

    model_dir: Path
    name: str
    manifest: folder_files.Manifest

    @property
    def step(self) -> int:
        """The global step at which it was written."""
        return self.manifest.step

    @property
    def path(self) -> Path:
        """The file of its tensors."""
        return folder_files.tensors_path(self.model_dir, self.name)

    @cached_property
    def _stored(self) -> Mapping[str, tensor_files.Stored]:
        return tensor_files.tensors_in(self.path)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(entry.nbytes for entry in self.manifest.tensors.values())

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of its tensors that are weights: neither optimizer state nor the loss scale's."""
        others = {*self.optimizer_state, *SCALE_TENSORS}
        return tuple(name for name in self.manifest.tensors if name not in others)

    @property
    def of_store(self) -> frozenset[str]:
        """The names of its tensors that were in a store: not the loss's scale, nor integers."""
        floats = (
            n for n, entry in self.manifest.tensors.items() if entry.dtype.startswith("float")
        )
        return frozenset(floats) - set(SCALE_TENSORS)

    @cached_property
    def optimizer_state(self) -> frozenset[str]:
        """Names of its tensors that are optimizer state."""
        return slot_tensors(self.manifest.tensors, slots_of(self.manifest.identity))

    def damages(self) -> Iterator[tuple[str, str | None]]:
        """Yield each of its tensors, by name, with its damage, if any."""
        for name in self.manifest.tensors:
            try:
                for _ in self.read({name: None}):
                    pass
                yield name, None
            except CheckpointDamagedError as damage:
                yield name, str(damage)

    def restore(self, state: Mapping[str, Array]) -> None:
        """Read every tensor of `state` into its array, one at a time.

        Raises: CsrunError as `require_same`; if damaged, naming the damage and the newest good
        checkpoint
        """
        self.require_same(state)
        self.take(state)

    def begin(self, weights: Mapping[str, Array]) -> None:
        """Read a converted checkpoint into a model's weights, which have their initial values.

        Weights that the manifest lists as missing keep these.

        Raises: CsrunError as `restore`
        """
        uninitialized = self.manifest.uninitialized
        found = {name: array for name, array in weights.items() if name not in uninitialized}
        self.require_same(found)
        self.take(found)

    def require_same(self, state: Mapping[str, Array]) -> None:
        """Check that the checkpoint has the tensors of `state`, with their shapes and types.

        Additional tensors of the checkpoint are an error, except optimizer state if `state` has
        none: an evaluation does not need it.

        Raises: UsageError naming the tensors that differ, if the checkpoint is of another model
        """
        if lines := self.differences(state):
            shown = "; ".join(lines[:SHOWN_DIFFERENCES])
            more = len(lines) - SHOWN_DIFFERENCES
            raise UsageError(
                f"{self.path} does not fit the model: "
                f"{shown}{f'; and {more} more' * (more > 0)}; choose another model_dir, or undo "
                "the change"
            )

    def take(self, arrays: Mapping[str, Array]) -> None:
        """Read only these tensors, into their arrays.

        Raises: CsrunError if damaged, naming the damage and the newest good checkpoint
        """
        try:
            for name, array in self.read(arrays):
                arrays[name][...] = array
        except CheckpointDamagedError as damage:
            raise _refusal(self.model_dir, self.name, damage) from damage

    def tensor(self, name: str) -> Array:
        """Return one of its tensors. Raises: CsrunError as `take`"""
        try:
            ((_, array),) = self.read({name: None})
        except CheckpointDamagedError as damage:
            raise _refusal(self.model_dir, self.name, damage) from damage
        return array

    def differences_from(self, wanted: Mapping[str, tuple[tuple[int, ...], str]]) -> list[str]:
        """Return one line for each tensor that it lacks, or has with another shape or type."""
        lines = []
        for name, (shape, dtype) in wanted.items():
            entry = self.manifest.tensors.get(name)
            if entry is None:
                lines.append(f"tensor {name}: not in the checkpoint")
            elif (entry.shape, entry.dtype) != (shape, dtype):
                model = folder_files.TensorEntry(shape, dtype, 0).kind
                lines.append(f"tensor {name}: the checkpoint has {entry.kind}, the model {model}")
        return lines

    def differences(self, state: Mapping[str, Array]) -> list[str]:
        """Return one line for each tensor that is missing, unexpected, or of another shape or
        type.
        """
        found = self.manifest.tensors
        unused = self.optimizer_state if self.optimizer_state.isdisjoint(state) else frozenset()
        lines = [f"tensor {name}: not in the checkpoint" for name in state if name not in found]
        for name, entry in found.items():
            if name in state:
                model = folder_files.TensorEntry(
                    state[name].shape, state[name].dtype.name, entry.crc32
                )
                if model != entry:
                    both = f"the checkpoint has {entry.kind}, the model {model.kind}"
                    lines.append(f"tensor {name}: {both}")
            elif name not in unused and name in self.of_store:
                lines.append(f"tensor {name}: not in the model")
        return lines

    def read(self, names: Mapping[str, object]) -> Iterator[tuple[str, Array]]:
        """Read the named tensors and verify them. Raises: CheckpointDamagedError"""
        try:
            for name in names:
                array = self._stored[name].read().raw
                self._verify(name, array)
                yield name, array
        except FileNotFoundError as error:
            raise CheckpointRemovedError(str(error)) from error
        except KeyError as error:
            raise CheckpointDamagedError(f"the file has no tensor {error}") from error
        except (tensor_files.TensorFileError, OSError) as error:
            raise CheckpointDamagedError(str(error)) from error

    def _verify(self, name: str, array: Array) -> None:
        entry = self.manifest.tensors[name]
        found = folder_files.TensorEntry(array.shape, array.dtype.name, zlib.crc32(bytes_of(array)))
        if found != entry:
            raise CheckpointDamagedError(
                f"tensor {name}: checksum {found.crc32:08x}, the manifest says {entry.crc32:08x}"
            )


def latest(model_dir: Path) -> Checkpoint | None:
    """Return the newest checkpoint in the index; None if there is none.

    A checkpoint whose two files the user has deleted is skipped. If a running training rewrites the
    index meanwhile, it is read again. Without an index it is the newest complete checkpoint; None,
    if a run was killed during its first one.

    Raises: CsrunError if it is damaged or missing, naming the newest good one
    """
    index = folder_files.read_index(model_dir)
    while True:
        try:
            found, problem = _newest_named(model_dir, index), None
        except CsrunError as error:
            found, problem = None, error
        # A running training may have deleted what the index named when it was read.
        before, index = index, folder_files.read_index(model_dir)
        if found is not None or index == before:
            break
    if problem is not None:
        raise problem
    return _newest_without_index(model_dir) if found is None and index is None else found


def _newest_named(model_dir: Path, index: folder_files.Index | None) -> Checkpoint | None:
    for name in reversed(index.kept if index else ()):
        if folder_files.checkpoint_exists(model_dir, name):
            return _open_named(model_dir, name)
        log.warning("%s: checkpoint %s is in the index but missing on disk", model_dir, name)
    return None


def _newest_without_index(model_dir: Path) -> Checkpoint | None:
    steps = folder_files.steps_in(model_dir)
    if not steps:
        return None
    if folder_files.has_only_begun(model_dir, steps):
        log.warning("%s: skipping incomplete checkpoint %s", model_dir, folder_files.name_of(0))
        return None
    good = newest_intact(model_dir)
    if good is None:
        raise CsrunError(
            f"{model_dir}: the index {folder_files.INDEX_FILE} is missing and none of {len(steps)} "
            f"checkpoints is complete: remove {folder_files.PREFIX}* to restart training"
        )
    log.warning(
        "%s: the index %s is missing: resuming from %s, the newest complete checkpoint",
        model_dir, folder_files.INDEX_FILE, good.name,
    )  # fmt: skip
    return good


def open_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint at a path: its tensors' file, its manifest, or its name without suffix.

    The path of a folder means the newest one in it.

    Raises: UsageError if there is none; CsrunError if it is damaged
    """
    folder, name = path.parent, folder_files.name_at(path)
    if os.path.isdir(path):
        folder, found = path, latest(path)
    elif os.path.lexists(folder_files.manifest_path(folder, name)):
        found = _open_named(folder, name)
    else:
        found = None
    if found is None:
        raise UsageError(f"{path}: no checkpoint; {_those_in(folder)}")
    return found


def _those_in(folder: Path) -> str:
    """Return the names of the checkpoints in a folder, for a message."""
    place = "the working directory" if folder == Path() else folder
    steps = folder_files.steps_in(folder)
    if not steps:
        return f"{place} has none: give a model_dir, or a file model-ckpt-STEP"
    names = ", ".join(map(folder_files.name_of, steps[:SHOWN_NAMES]))
    more = len(steps) - SHOWN_NAMES
    return f"{place} has {names}{f' and {more} older ones' * (more > 0)}"


def _open_named(model_dir: Path, name: str) -> Checkpoint:
    try:
        return checked(model_dir, name)
    except CheckpointDamagedError as damage:
        raise _refusal(model_dir, name, damage) from damage


def checked(model_dir: Path, name: str) -> Checkpoint:
    """Return a checkpoint with a readable manifest and a tensors' file of the right size.

    Raises: CheckpointDamagedError
    """
    try:
        text = read_file(folder_files.manifest_path(model_dir, name))
        manifest = stored.value_of(text, folder_files.Manifest)
        path = folder_files.tensors_path(model_dir, name)
        head, size = _head_and_size(path)
        found = Checkpoint(model_dir, name, manifest)
        wanted = head + found.nbytes
    except (stored.DamagedError, OSError, ValueError, TypeError) as error:
        raise CheckpointDamagedError(str(error)) from error
    if folder_files.name_of(manifest.step) != name:
        raise CheckpointDamagedError(f"its manifest says step {manifest.step}")
    # The size reveals a truncated file without reading all of it.
    if size != wanted:
        raise CheckpointDamagedError(f"the file has {size:,} bytes, expected {wanted:,}")
    return found


def _head_and_size(path: Path) -> tuple[int, int]:
    """Return the bytes before the tensors in their file, and its size."""
    try:
        with open(open_regular(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            head = 8 + int.from_bytes(file.read(8), "little")
            return head, os.fstat(file.fileno()).st_size
    except FileNotFoundError as error:
        raise CheckpointRemovedError(str(error)) from error


def _refusal(model_dir: Path, name: str, damage: CheckpointDamagedError) -> CsrunError:
    found = newest_intact(model_dir, damaged=name)
    path, good = folder_files.tensors_path(model_dir, name), found.path if found else None
    if isinstance(damage, CheckpointRemovedError):
        remedy = f"the newest good one is {good}: give it as" if good else "give another as"
        return CsrunError(
            f"{path} no longer exists (removed by a running training?); {remedy} checkpoint_path"
        )
    remedy = f"no other checkpoint is complete: remove {name}.* to restart training"
    if good is not None:
        remedy = (
            f"the newest good one is {good}: give it as checkpoint_path, or remove {name}.* to "
            "resume from it"
        )
    return CsrunError(f"{path} is damaged: {damage}; {remedy}")


def newest_intact(model_dir: Path, damaged: str = "") -> Checkpoint | None:
    """Return the newest checkpoint, besides a damaged one, that is intact."""
    for name in map(folder_files.name_of, folder_files.steps_in(model_dir)):
        if name == damaged:
            continue
        try:
            checkpoint = checked(model_dir, name)
            for _ in checkpoint.read(checkpoint.manifest.tensors):
                pass
        except CheckpointDamagedError:
            continue
        return checkpoint
    return None
