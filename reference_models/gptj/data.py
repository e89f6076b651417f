"""Input functions: windows of a token file, and the next tokens."""

from pathlib import Path

from params import Params

from csrun.data import Batch, DataError, Dataset
from csrun.data.formats import Tokens


def train_input_fn(params: Params) -> Dataset:
    """Return endless shuffled batches: tokens and next tokens, int32 [B, T]."""
    options = params.train_input
    shuffled = windows(options.file, params).shuffle(seed=options.shuffle_seed).repeat()
    return shuffled.batch(options.batch_size, drop_remainder=True).map(as_int32)


def eval_input_fn(params: Params) -> Dataset:
    """Return the validation text once, in order; the last batch may be smaller."""
    options = params.eval_input
    return windows(options.file, params).batch(options.batch_size).map(as_int32)


def windows(file: str, params: Params) -> Dataset:
    """Return the text as consecutive windows of the model's sequence length.

    A relative path is searched in the working directory, then next to this file.

    Raises: DataError if the file is missing or has another vocabulary
    """
    found = [path for path in (Path(file), Path(__file__).parent / file) if path.is_file()]
    if not found:
        raise DataError(
            f"{file}: there is no such file; 'python ../gpt2/prepare_data.py --out data' makes it "
            "of any text"
        )
    model = params.model
    form = Tokens(model.sequence_length, vocabulary=model.vocabulary)
    return Dataset.from_files(str(found[0]), form)


def as_int32(*arrays: object) -> Batch:
    """Convert token ids to int32."""
    return tuple(array.astype("int32") for array in arrays)
