"""File formats, which read arrays or streams of samples, and their file suffixes.

Text and bytes are uint8 vectors: use `bytes(sample).decode()` in a map.
"""

import re
from collections.abc import Callable
from pathlib import Path

from csrun.data.errors import DataError
from csrun.data.formats.base import Format, IndexedFormat, StoredRows, StreamedFormat
from csrun.data.formats.csv import Csv
from csrun.data.formats.hdf5 import Hdf5
from csrun.data.formats.idx import Idx
from csrun.data.formats.lines import Lines
from csrun.data.formats.npy import Npy
from csrun.data.formats.tfexample import Fixed, TFExample, Variable
from csrun.data.formats.tfrecord import TFRecord
from csrun.data.formats.token_files import Tokens, write_tokens

__all__ = [
    "Csv",
    "Fixed",
    "Format",
    "Hdf5",
    "Idx",
    "IndexedFormat",
    "Lines",
    "Npy",
    "StoredRows",
    "StreamedFormat",
    "TFExample",
    "TFRecord",
    "Tokens",
    "Variable",
    "of",
    "write_tokens",
]

FORMATS: dict[str, Callable[[], Format]] = {
    r"idx\d-ubyte(\.gz)?": Idx,
    r"\.np[yz]": Npy,
    r"\.txt(\.gz)?": Lines,
    r"\.csv(\.gz)?": Csv,
    r"\.tfrecords?(\.gz)?": TFRecord,
    r"\.(h5|hdf5)": Hdf5,
}


def of(path: str | Path) -> Format:
    """Return the format of a file by its suffix, with default options.

    Raises: DataError for an unknown suffix
    """
    name = Path(path).name
    for ending, form in FORMATS.items():
        if re.search(f"{ending}$", name):
            return form()
    remedy = "pass format=, one of csrun.data.formats"
    if name.endswith(".bin"):
        remedy = (
            "for token ids in a .bin file, pass formats.Tokens(length=...), in tokens per sample"
        )
    raise DataError(f"{path}: unknown file format: {remedy}")
