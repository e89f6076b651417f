"""The input functions: windows of a token file, and the tokens that follow."""

from pathlib import Path

from params import Params

from csrun.data import Batch, DataError, Dataset
from csrun.data.formats import Tokens


def train_input_fn(params: Params) -> Dataset:
    """Endless shuffled batches: tokens and next tokens, int32 [B, T]."""
    options = params.train_input
    shuffled = windows(options.file, params).shuffle(seed=options.shuffle_seed).repeat()
    return shuffled.batch(options.batch_size, drop_remainder=True).map(as_int32)


def eval_input_fn(params: Params) -> Dataset:
    """The validation text once, in order; the last batch may be smaller."""
    options = params.eval_input
    return windows(options.file, params).batch(options.batch_size).map(as_int32)


def windows(file: str, params: Params) -> Dataset:
    """The text in windows of the model's sequence length, one behind the other.

    A relative path is looked for in the working directory, then beside this file.

    Raises: DataError when there is no such file, or it is for another vocabulary
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
    """Token ids in the type that the model takes."""
    return tuple(array.astype("int32") for array in arrays)
