"""File formats: from a path to arrays, or to samples in turn.

Text and bytes come as uint8 vectors: `bytes(sample).decode()` in a map gives a text.
"""

from csrun.data.formats.base import Format, IndexedFormat, StoredRows, StreamedFormat
from csrun.data.formats.csv import Csv
from csrun.data.formats.guess import of
from csrun.data.formats.hdf5 import Hdf5
from csrun.data.formats.idx import Idx
from csrun.data.formats.lines import Lines
from csrun.data.formats.npy import Npy
from csrun.data.formats.tfexample import Fixed, TFExample, Variable
from csrun.data.formats.tfrecord import TFRecord
from csrun.data.formats.tokens import Tokens

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
]
