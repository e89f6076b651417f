"""A file that is expensive to decode is decoded once a job; its tasks map the result."""

import fcntl
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.context import current

Array = npt.NDArray[Any]


def decoded(path: Path, decode: Callable[[Path], Array]) -> Array:
    """`decode(path)`, shared by the tasks of a job as a read-only memory map.

    Without a launcher around this process it is decoded right here. The first task to come holds
    a lock, which dies with it, while it decodes; a changed file is decoded anew.
    """
    context = current()
    if context is None:
        return decode(path)
    context.cache_dir.mkdir(parents=True, exist_ok=True)
    target = context.cache_dir / f"{_key(path)}.npy"
    if not target.exists():
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _save(target, decode(path))
    return _load(target)


def _key(path: Path) -> str:
    stat = path.stat()
    identity = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()


def _save(target: Path, array: Array) -> None:
    temporary = target.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.save(file, array)
    temporary.replace(target)


def _load(path: Path) -> Array:
    try:
        return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]
    except ValueError:  # an array without elements cannot be mapped
        return np.load(path)  # type: ignore[no-any-return]
