"""IDX files, the format of MNIST."""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.data.errors import DataError, require
from csrun.data.formats.decoded import decoded

GZIP_MAGIC = b"\x1f\x8b"
DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

Array = npt.NDArray[Any]


def read(path: str | Path) -> Array:
    """Return the array of an IDX file; within a job it is decoded once, cached and memory-mapped.

    Raises: DataError for a missing file, or one that does not match its header.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file; set data_dir to the folder of the IDX files")
    return decoded(path, decode)


def find(folder: str | Path, name: str) -> Path:
    """Find the file `name` or `name.gz` in a folder.

    Raises: DataError if there is neither
    """
    candidates = [Path(folder) / name, Path(folder) / f"{name}.gz"]
    for path in candidates:
        if path.is_file():
            return path
    raise DataError(f"{folder}: neither {name} nor {name}.gz found; set data_dir")


def decode(path: Path) -> Array:
    """Decode an IDX file into an array in native byte order.

    Raises: DataError if it does not match its header
    """
    content = _content(path)
    require(len(content) >= 4, str(path), "an IDX file has at least 4 bytes", len(content))
    dtype, axes = DTYPES.get(content[2]), content[3]
    magic = content[:4].hex()
    rule = "must start as an IDX file (two zero bytes, a type code, the number of axes)"
    require(content[:2] == b"\0\0" and dtype is not None, str(path), rule, f"0x{magic}")
    header = 4 + 4 * axes
    require(len(content) >= header, str(path), f"{axes} axes need {header} bytes", len(content))
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", axes, 4))
    return _values(path, content, header, np.dtype(dtype), shape)


def _values(
    path: Path, content: bytes, header: int, dtype: "np.dtype[Any]", shape: tuple[int, ...]
) -> Array:
    count = 1
    for extent in shape:
        count *= extent
    promised = header + count * dtype.itemsize
    rule = f"shape {list(shape)} of {dtype.newbyteorder('=').name} needs {promised} bytes"
    require(len(content) == promised, str(path), rule, f"{len(content)}; is it truncated?")
    values = np.frombuffer(content, dtype, count, header).reshape(shape)
    # IDX is big-endian, which all later arithmetic would convert again and again.
    return values.astype(dtype.newbyteorder("="), copy=False)


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if not content.startswith(GZIP_MAGIC):
        rule = "a file named .gz must be a gzip file"
        require(path.suffix != ".gz", str(path), rule, f"first bytes 0x{content[:4].hex()}")
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: incomplete or damaged gzip file: {error}") from error


@dataclass(frozen=True)
class Idx:
    """Array of an IDX file, gzipped or not; within a job it is decoded once."""

    def arrays(self, path: Path) -> tuple[Array, ...]:
        """Return the array of the file.

        Raises: DataError for a missing file, or one that does not match its header
        """
        array = read(path)
        require(array.ndim > 0, str(path), "samples need a first axis", "a single number")
        return (array,)
