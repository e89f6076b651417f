"""Write the token files of language models, train.bin and validation.bin, from text.

python prepare_data.py                       sources of Python's standard library, as bytes
python prepare_data.py book.txt notes/       text files, and those in folders
python prepare_data.py --tokenizer t.json    with a Hugging Face tokenizers file
"""

import argparse
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from csrun.data import DataError
from csrun.data.formats import write_tokens

BYTES = 256  # vocabulary of bytes
EVERY = 10  # one of this many files is for validation

Encode = Callable[[bytes], np.ndarray]


def main() -> None:
    """Parse the options, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("texts", nargs="*", type=Path, help="text files and folders")
    parser.add_argument("--tokenizer", type=Path, help="tokenizers file; default: bytes")
    parser.add_argument("--suffix", default=".py", help="suffix of files in folders (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data")
    options = parser.parse_args()
    encode, vocabulary = tokenizer(options.tokenizer)
    places = options.texts or [standard_library()]
    if missing := [str(place) for place in places if not place.exists()]:
        sys.exit(f"error: there is no {', no '.join(missing)}")
    files = list(found(places, options.suffix))
    if len(files) < EVERY:
        sys.exit(f"error: {len(files)} files found; {EVERY} are needed, one of them for validation")
    options.out.mkdir(parents=True, exist_ok=True)
    parts = {
        "train": [file for at, file in enumerate(files) if at % EVERY],
        "validation": files[::EVERY],
    }
    for name, part in parts.items():
        path = options.out / f"{name}.bin"
        try:
            count = write_tokens(path, pieces(part, encode), vocabulary)
        except (OSError, DataError) as error:
            sys.exit(f"error: {error}")
        print(f"{path}: {count:,} tokens of {vocabulary:,}, from {len(part):,} files")


def standard_library() -> Path:
    """Return the folder of Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def found(places: Sequence[Path], suffix: str) -> Iterator[Path]:
    """Return files, and those in folders by name, without tests and installed packages."""
    for place in places:
        if place.is_dir():
            for path in sorted(place.rglob(f"*{suffix}")):
                if not {"site-packages", "test", "tests"} & set(path.relative_to(place).parts):
                    yield path
        else:
            yield place


def tokenizer(path: Path | None) -> tuple[Encode, int]:
    """Return the function from text to ids, and the size of the vocabulary."""
    if path is None:
        return lambda text: np.frombuffer(text, np.uint8), BYTES
    try:
        from tokenizers import Tokenizer  # type: ignore[import-not-found]
    except ImportError:
        sys.exit("error: --tokenizer needs the package tokenizers: pip install tokenizers")
    try:
        words = Tokenizer.from_file(str(path))
    except Exception as error:  # all errors of the package are about this file
        sys.exit(f"error: {path}: no tokenizers file: {error}")

    def encode(text: bytes) -> np.ndarray:
        return np.array(words.encode(text.decode(errors="replace")).ids, np.int64)

    return encode, words.get_vocab_size()


def pieces(files: Sequence[Path], encode: Encode) -> Iterator[np.ndarray]:
    """Yield the ids of each file; show the progress on a terminal."""
    for number, path in enumerate(files, 1):
        if sys.stderr.isatty():
            print(f"\r{number} of {len(files)} files", end="", file=sys.stderr)
        yield encode(path.read_bytes())
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)


if __name__ == "__main__":
    main()
