"""Input functions of the GPT models: windows of a token file, and the next tokens."""

from pathlib import Path

from params import Params

from csrun.data import Batch, DataError, Dataset
from csrun.data.formats import Tokens


def train_input_fn(params: Params) -> Dataset:
    """Return endless shuffled batches: tokens and next tokens, int32 [B, T]."""
    options = params.train_input
    return (
        windows(options.file, params)
        .shuffle(seed=options.shuffle_seed)
        .repeat()
        .batch(options.batch_size, drop_remainder=True)
        .map(as_int32)
    )


def eval_input_fn(params: Params) -> Dataset:
    """Return the validation text once, in order; the last batch may be smaller."""
    options = params.eval_input
    return windows(options.file, params).batch(options.batch_size).map(as_int32)


def windows(file: str, params: Params) -> Dataset:
    """Return the text as consecutive windows of the model's sequence length.

    Raises: DataError if the file is missing or has another vocabulary
    """
    path = found(file)
    model = params.model
    form = Tokens(model.sequence_length, vocabulary=model.vocabulary)
    return Dataset.from_files(str(path), form)


def found(file: str) -> Path:
    """Find a relative path in the working directory, or next to this file."""
    for path in (Path(file), Path(__file__).parent / file):
        if path.is_file():
            return path
    raise DataError(f"{file}: there is no such file; 'python prepare_data.py' makes it of any text")


def as_int32(*arrays: object) -> Batch:
    """Convert token ids to int32."""
    return tuple(array.astype("int32") for array in arrays)
