"""Model functions of a Model Zoo checkout, trained by csrun and by a Session.

usage: modelzoo_tf.py CHECKOUT NAME OPTIMIZER STEPS; prints the distance of both as JSON
"""

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

checkout, name, optimizer, steps = sys.argv[1:]
TESTS = Path(__file__).parents[1]
sys.path[:0] = [checkout, str(TESTS), str(TESTS / "support" / "modelzoo_stubs")]

import numpy as np  # noqa: E402
import yaml  # noqa: E402
from support import tf_models  # noqa: E402
from support.modelzoo_records import (  # noqa: E402
    BATCH,
    CONFIGS,
    LENGTH,
    PREDICTED,
    SMALL,
    WORDS,
)

import cerebras.tf.cs_estimator  # noqa: E402, F401  puts names into TensorFlow

ADAM = {"optimizer_type": "adam", "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}


def params_of_fc_mnist():
    rate = {"learning_rate": 0.1 if optimizer == "sgd" else 0.001}
    chosen = {"optimizer_type": "sgd"} if optimizer == "sgd" else ADAM
    model = {"hidden_sizes": [50, 30], "dropout": 0.0, "activation_fn": "relu"}
    return {"model": model, "optimizer": {**chosen, **rate}}


def params_of_transformer(folder):
    given = yaml.safe_load((folder / "configs" / CONFIGS[name]).read_text())
    words = Path(tempfile.mkdtemp()) / "vocabulary.txt"
    words.write_text("\n".join(map(str, range(WORDS))))
    for key in ("train_input", "eval_input"):
        given[key].update(batch_size=BATCH, max_sequence_length=LENGTH, vocab_size=WORDS)
        if name == "bert":
            given[key].update(vocab_file=str(words), buckets=None)
            given[key]["max_predictions_per_seq"] = PREDICTED
    model = given["model"]
    model.update(SMALL, **{key: 0.0 for key in model if "dropout_rate" in key})
    if name == "gptj":
        model["rotary_dim"] = 4
    if optimizer == "sgd":
        given["optimizer"] = {"optimizer_type": "sgd", "learning_rate": 1.0}
    path = words.with_name("params.yaml")
    path.write_text(yaml.safe_dump(given))
    os.chdir(folder)
    return importlib.import_module(f"modelzoo.transformers.tf.{name}.utils").get_params(str(path))


def batch_of_transformer(rng):
    mask = np.zeros((BATCH, LENGTH), np.float32 if name == "gpt2" else np.int32)
    mask[0, LENGTH // 2 :] = 1
    features = {"input_ids": rng.integers(0, WORDS, (BATCH, LENGTH), np.int32), "input_mask": mask}
    if name != "bert":
        return features, rng.integers(0, WORDS, (BATCH, LENGTH), np.int32)
    places = (BATCH, PREDICTED)
    features |= {
        "segment_ids": rng.integers(0, 2, (BATCH, LENGTH), np.int32),
        "masked_lm_positions": rng.integers(0, LENGTH // 2, places, np.int32),
        "masked_lm_ids": rng.integers(0, WORDS, places, np.int32),
        "masked_lm_weights": np.array([[1, 1, 1, 0]] * BATCH, np.float32),
    }
    return features, rng.integers(0, 2, BATCH, np.int32)


def main():
    count, rng = int(steps), np.random.default_rng(0)
    if name == "fc_mnist":
        package, params = "modelzoo.fc_mnist.tf", params_of_fc_mnist()
        data = [
            (rng.random((32, 784), np.float32), rng.integers(0, 10, 32, np.int32))
            for _ in range(count)
        ]
    else:
        package = f"modelzoo.transformers.tf.{name}"
        params = params_of_transformer(Path(checkout, *package.split(".")))
        data = [batch_of_transformer(rng) for _ in range(count)]
    model_fn = importlib.import_module(f"{package}.model").model_fn
    folder = Path(tempfile.mkdtemp())
    estimator = tf_models.trained(model_fn, folder, data, params=params)
    first, last = tf_models.weights(folder, 0), tf_models.weights(folder, count)
    _, wanted = tf_models.in_session(model_fn, first, data, params)
    ours, theirs = ({n: each[n] - first[n] for n in wanted} for each in (last, wanted))
    evaluated = estimator.evaluate(lambda: data)
    results = {
        "weights": tf_models.distance(last, wanted),
        "change": tf_models.distance(ours, theirs),
        "metrics": sorted(evaluated),
    }
    print("RESULTS", json.dumps(results))


main()
