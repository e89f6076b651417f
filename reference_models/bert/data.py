"""Input functions of the BERT models: pairs of segments of a text, with masked tokens.

A sample is [CLS] a [SEP] b [SEP] and padding; b follows a in the text, or is from elsewhere. The
random draws of a sample depend only on the seed and the sample's number, so every task makes the
same sample.

If the model has classes, a sample is [CLS] a [SEP], of one of several texts.

Source: Devlin et al. 2018, BERT, sections 3.1 and A.2, and the code published with it
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator, Philox
from params import Input, Params, SpecialTokens

from csrun.data import DataError, Dataset
from csrun.data.formats import Tokens

SPECIAL = 3  # special tokens of a sample: [CLS], and [SEP] twice
FOLLOWS, ELSEWHERE = 0, 1  # labels of the second segment
MASKED, RANDOM = 0.8, 0.1  # replaced by [MASK], and by a random token; the rest is unchanged
IGNORED = -100  # label of a token that is not masked

Arrays = dict[str, np.ndarray]


def train_input_fn(params: Params) -> Dataset:
    """Return endless shuffled batches of features and labels."""
    options = params.train_input
    samples = samples_of(options, params)
    return (
        Dataset.from_arrays(samples.numbers(options.duplicates))
        .shuffle(seed=options.shuffle_seed)
        .repeat()
        .batch(options.batch_size, drop_remainder=True)
        .map(samples.batch)
    )


def eval_input_fn(params: Params) -> Dataset:
    """Return the samples of the validation text once, in order; the last batch may be smaller."""
    options = params.eval_input
    samples = samples_of(options, params)
    return Dataset.from_arrays(samples.numbers()).batch(options.batch_size).map(samples.batch)


def samples_of(options: Input, params: Params) -> "Pairs | Texts":
    """Return the samples for the model's task."""
    return texts_of(options, params) if params.model.classes else pairs_of(options, params)


@dataclass(frozen=True)
class Pairs:
    """Samples of a text by their numbers: sample i begins with window i modulo their count.

    Shapes: windows [N, T - 3], a view of the text; text [M]
    """

    windows: np.ndarray
    text: np.ndarray
    options: Input
    special: SpecialTokens
    vocabulary: int

    def numbers(self, duplicates: int = 1) -> np.ndarray:
        """Numbers of all samples; each window begins several."""
        return np.arange(len(self.windows) * duplicates)

    def batch(self, numbers: np.ndarray) -> tuple[Arrays, Arrays]:
        """Return features and labels of the samples with these numbers.

        Shapes: numbers [B] -> input_ids, segment_ids, masked_lm_labels [B, T] int32, mask [B, T]
        bool, next_sentence [B] int32
        """
        rows, length = len(numbers), self.windows.shape[1] + SPECIAL
        ids = np.full((rows, length), self.special.pad, np.int32)
        segments = np.zeros((rows, length), np.int32)
        mask = np.zeros((rows, length), np.bool_)
        labels = np.full((rows, length), IGNORED, np.int32)
        follows = np.empty(rows, np.int32)
        for row, number in enumerate(numbers.tolist()):
            random = Generator(Philox(key=(self.options.seed, number)))
            a, b, follows[row] = self.segments(random, number)
            end = SPECIAL + len(a) + len(b)
            ids[row, :end] = self.joined(a, b)
            segments[row, len(a) + 2 : end] = 1
            mask[row, :end] = True
            places = self.places(random, len(a), len(b))
            labels[row, places] = ids[row, places]
            ids[row, places] = self.hidden(random, ids[row, places])
        features = {"input_ids": ids, "segment_ids": segments, "mask": mask}
        return features, {"masked_lm_labels": labels, "next_sentence": follows}

    def segments(self, random: Generator, number: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return two segments of a window; the second may come from elsewhere in the text."""
        window = self.windows[number % len(self.windows)]
        if random.random() < self.options.short_share:
            window = window[: random.integers(2, len(window) + 1)]
        cut = random.integers(1, len(window))
        a, b = window[:cut], window[cut:]
        if random.random() < 0.5:
            return a, b, FOLLOWS
        start = random.integers(0, len(self.text) - len(b) + 1)
        return a, self.text[start : start + len(b)], ELSEWHERE

    def joined(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """[CLS] a [SEP] b [SEP]"""
        cls, sep = [self.special.cls], [self.special.sep]
        return np.concatenate([cls, a, sep, b, sep])

    def places(self, random: Generator, a: int, b: int) -> np.ndarray:
        """Draw the positions of masked tokens: at least one, and no special tokens.

        a, b: lengths of the segments.
        """
        count = max(1, round(self.options.masked_share * (a + b)))
        drawn = random.choice(a + b, count, replace=False)
        return drawn + 1 + (drawn >= a)

    def hidden(self, random: Generator, tokens: np.ndarray) -> np.ndarray:
        """Return the replacements of masked tokens."""
        kind = random.random(len(tokens))
        others = random.integers(0, self.vocabulary, len(tokens))
        shown = np.where(kind < MASKED + RANDOM, others, tokens)
        return np.where(kind < MASKED, self.special.mask, shown)


@dataclass(frozen=True)
class Texts:
    """Samples of several texts, each a class: windows of the first one, then those of the next.

    Shapes: windows [N, T - 2] of each text
    """

    windows: tuple[np.ndarray, ...]
    special: SpecialTokens

    def numbers(self, duplicates: int = 1) -> np.ndarray:
        """Numbers of all samples, one per window, since nothing is drawn."""
        return np.arange(sum(map(len, self.windows)))

    def batch(self, numbers: np.ndarray) -> tuple[Arrays, np.ndarray]:
        """Return features and classes of the samples with these numbers.

        Shapes: numbers [B] -> input_ids, segment_ids [B, T] int32, mask [B, T] bool, and [B]
        """
        ends = np.cumsum([len(part) for part in self.windows])
        classes = np.searchsorted(ends, numbers, side="right").astype(np.int32)
        ids = np.empty((len(numbers), self.windows[0].shape[1] + 2), np.int32)
        ids[:, 0], ids[:, -1] = self.special.cls, self.special.sep
        for row, (number, text) in enumerate(zip(numbers, classes, strict=True)):
            ids[row, 1:-1] = self.windows[text][number - ends[text]]  # from the text's end
        mask = np.ones(ids.shape, np.bool_)
        return {"input_ids": ids, "segment_ids": np.zeros_like(ids), "mask": mask}, classes


def texts_of(options: Input, params: Params) -> Texts:
    """Return the samples of several token files, one per class.

    Raises: DataError as `pairs_of`, and for another number of files
    """
    model, some = params.model, options.file
    require_special_tokens(params)
    if isinstance(some, str) or len(some) != model.classes:
        count = 1 if isinstance(some, str) else len(some)
        raise DataError(
            f"file must be a list of {model.classes} files, one of each class, got {count}"
        )
    form = Tokens(model.sequence_length - 2, vocabulary=model.vocabulary)
    return Texts(tuple(form.arrays(found(one))[0] for one in some), params.special_tokens)


def pairs_of(options: Input, params: Params) -> Pairs:
    """Return the samples of a token file.

    Raises: DataError if the file is missing or has another vocabulary, or if a special token is
    outside of the vocabulary
    """
    model = params.model
    require_special_tokens(params)
    if not isinstance(options.file, str):
        raise DataError(
            f"file must be one file where there is no model.classes, got {options.file}"
        )
    path = found(options.file)
    windows, _ = Tokens(model.sequence_length - SPECIAL, vocabulary=model.vocabulary).arrays(path)
    text, _ = Tokens(1).arrays(path)
    return Pairs(windows, text[:, 0], options, params.special_tokens, model.vocabulary)


def require_special_tokens(params: Params) -> None:
    """Raises: DataError for a special token outside of the vocabulary"""
    model, special = params.model, params.special_tokens
    for name in special.__struct_fields__:
        if (token := getattr(special, name)) >= model.vocabulary:
            raise DataError(
                f"special_tokens.{name} must be below model.vocabulary {model.vocabulary}, "
                f"got {token}"
            )


def found(file: str) -> Path:
    """Find a relative path in the working directory, or next to this file."""
    for path in (Path(file), Path(__file__).parent / file):
        if path.is_file():
            return path
    remedy = "'python ../gpt2/prepare_data.py --out data' makes it of any text"
    raise DataError(f"{file}: there is no such file; {remedy}")
