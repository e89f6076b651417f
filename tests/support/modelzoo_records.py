"""TFRecord files of random tokens and small params files for run.py of the Model Zoo."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import yaml

BATCH, LENGTH, WORDS, PREDICTED = 4, 16, 50, 4
CONFIGS = {
    "gpt2": "params_gpt2_small.yaml",
    "bert": "params_bert_base_msl128.yaml",
    "gptj": "params_gptj.yaml",
}
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "filter_size": 64,
    "max_position_embeddings": LENGTH,
}
Changes = dict[str, dict[str, Any]]


def write_run(checkout: str | Path, name: str, folder: Path, changes: Changes) -> Path:
    """Write records for training and evaluation, and the shipped params for a small model.

    changes: values of the params by section. Returns the params file.
    """
    for number, part in enumerate(("train", "eval")):
        _write_records(folder / part, name, np.random.default_rng(number))
    shipped = Path(checkout) / "modelzoo/transformers/tf" / name / "configs" / CONFIGS[name]
    params = yaml.safe_load(shipped.read_text())
    for part in ("train", "eval"):
        given = params[f"{part}_input"]
        given |= {"data_dir": str(folder / part), "batch_size": BATCH, "shuffle": False}
        given |= {"max_sequence_length": LENGTH, "vocab_size": WORDS}
        if name == "bert":
            given |= {"vocab_file": None, "max_predictions_per_seq": PREDICTED, "buckets": None}
    model = params["model"]
    model |= SMALL | {key: 0.0 for key in model if key.endswith("dropout_rate")}
    if name == "gptj":
        model["rotary_dim"] = 4
    params["runconfig"]["log_step_count_steps"] = 1
    for section, values in changes.items():
        params[section] |= values
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(params))
    return path


def _write_records(folder: Path, name: str, rng: np.random.Generator, files: int = 2) -> None:
    """Write files of 6 batches each."""
    folder.mkdir(exist_ok=True)
    for number in range(files):
        with tf.io.TFRecordWriter(str(folder / f"examples-{number}.tfrecords")) as writer:
            for _ in range(6 * BATCH):
                writer.write(_example(name, rng).SerializeToString())


def _example(name: str, rng: np.random.Generator) -> Any:
    """An example of a sequence with padding at its end."""
    used = int(rng.integers(LENGTH // 2, LENGTH + 1))
    features = {
        "input_ids": _integers(rng.integers(0, WORDS, LENGTH)),
        "input_mask": _integers([1] * used + [0] * (LENGTH - used)),
    }
    if name == "bert":
        masked = int(rng.integers(1, PREDICTED + 1))
        features |= {
            "segment_ids": _integers(rng.integers(0, 2, LENGTH)),
            "masked_lm_positions": _integers(rng.integers(0, LENGTH // 2, PREDICTED)),
            "masked_lm_ids": _integers(rng.integers(0, WORDS, PREDICTED)),
            "masked_lm_weights": _floats([1.0] * masked + [0.0] * (PREDICTED - masked)),
            "next_sentence_labels": _integers(rng.integers(0, 2, 1)),
        }
    else:
        features["labels"] = _integers(rng.integers(0, WORDS, LENGTH))
    return tf.train.Example(features=tf.train.Features(feature=features))


def _integers(values: Any) -> Any:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _floats(values: Any) -> Any:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))
