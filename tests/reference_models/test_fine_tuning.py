"""BERT from pretraining through Hugging Face's layout to fine-tuning and back.

It is the tiny model of the params files with half the layers and width, so that few steps at a
high learning rate suffice for any first weights and any BLAS.
"""

import subprocess
import sys
import sysconfig
from importlib import import_module
from itertools import islice
from math import log
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.reference_models import MODELS, SMALL_MODELS, changed, one_thread, over
from support.trainings import byte_nats, text_of

from csrun.estimator import CerebrasEstimator
from csrun.params import load
from csrun.params.convert import from_huggingface, to_huggingface
from csrun.records import checkpoints

torch = pytest.importorskip("torch", reason="PyTorch computes transformers' models")
transformers = pytest.importorskip("transformers", reason="its model reads what is fine-tuned here")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 256}
BATCH = 32
WARM, PRETRAINED, TUNED = 50, 300, 300  # steps
PRETRAINING, TUNING = 0.002, 0.001  # learning rates
LEARNED = 0.1  # nats below those of how often each byte is
LEAST = 0.15  # above the share of the largest class
COMPARED = 4  # batches
WHOLE = 10**9  # bytes: one file


def prepared(out: Path, *texts: Path) -> None:
    command = [sys.executable, MODELS / "gpt2" / "prepare_data.py", "--out", out, *texts]
    subprocess.run([*map(str, command)], check=True, capture_output=True)


def of_steps(params: Any, steps: int, highest: float) -> Any:
    """Params with a learning rate that decays over this many steps."""
    numbers = {"initial_learning_rate": highest, "warmup_steps": WARM, "steps": steps - WARM}
    rate = msgspec.structs.replace(params.optimizer.learning_rate, **numbers)
    return changed(params, "optimizer", learning_rate=rate)


def trained(folder: Path, params: Any, steps: int) -> CerebrasEstimator:
    # Other tests run at once: a second thread of BLAS would wait for their CPU, and take its time.
    config = msgspec.structs.replace(params.runconfig, threads=1)
    model_fn = import_module("model").model_fn
    estimator = CerebrasEstimator(model_fn, folder, config=config, params=params)
    estimator.train(import_module("data").train_input_fn, max_steps=steps)
    return estimator


def pretrained(folder: Path) -> tuple[Any, Path]:
    """Params and model_dir of a BERT after some steps on the sources of the standard library."""
    prepared(folder / "library")
    files = [folder / "library" / f"{part}.bin" for part in ("train", "validation")]
    params = changed(over(SMALL_MODELS["bert"].shipped(files[0]), *files), "model", **SIZES)
    params = changed(params, "train_input", batch_size=BATCH)
    params = of_steps(params, PRETRAINED, PRETRAINING)
    estimator = trained(folder / "pretrained", params, PRETRAINED)
    loss = estimator.evaluate(import_module("data").eval_input_fn, 10)["loss"]
    assert loss < byte_nats(text_of(files[1])) + log(2) - LEARNED  # 2: of second segments
    return params, folder / "pretrained"


def classes_of(folder: Path) -> Any:
    """Params for classifying packages by their token files."""
    params = load(import_module("params").Params, MODELS / "bert/configs/params_classes.yaml")
    for part in ("train_input", "eval_input"):
        files = tuple(str(folder / file) for file in getattr(params, part).file)
        params = changed(params, part, file=files)
    for file in params.train_input.file:
        place = Path(file).parent
        prepared(place, Path(sysconfig.get_paths()["stdlib"]) / place.name)
    return of_steps(params, TUNED, TUNING)


def test_a_bert_learns_a_text_goes_through_huggingface_and_learns_classes(own_folder, bert):
    conversion, data = import_module("convert").CONVERSION, import_module("data")
    with one_thread(torch):
        params, model_dir = pretrained(own_folder)
        found = checkpoints.latest(model_dir)
        to_huggingface(conversion, own_folder / "theirs", params, found, WHOLE)
        given = classes_of(own_folder)
        params = from_huggingface(conversion, own_folder / "theirs", given, own_folder / "tuned")
        accuracy = trained(own_folder / "tuned", params, TUNED).evaluate(data.eval_input_fn)
    windows = [len(part) for part in data.samples_of(params.eval_input, params).windows]
    assert accuracy["accuracy"] > max(windows) / sum(windows) + LEAST
    found = checkpoints.latest(own_folder / "tuned")
    to_huggingface(conversion, own_folder / "back", params, found, WHOLE)
    assert_same_classes(params, own_folder)


def assert_same_classes(params: Any, folder: Path) -> None:
    """Assert that transformers' model of the checkpoint predicts the same classes as csrun."""
    data, model_fn = import_module("data"), import_module("model").model_fn
    kind = transformers.BertForSequenceClassification
    theirs = kind.from_pretrained(folder / "back").eval()
    estimator = CerebrasEstimator(model_fn, folder / "tuned", params=params)
    ours = [each["class"] for each in estimator.predict(data.eval_input_fn, COMPARED)]
    dataset, logits = data.eval_input_fn(params), []
    for flat in islice(dataset, COMPARED):
        features, _ = dataset.nested([torch.from_numpy(array).long() for array in flat])
        with torch.no_grad():
            out = theirs(
                features["input_ids"],
                token_type_ids=features["segment_ids"],
                attention_mask=features["mask"],
            )
        logits.append(out.logits.numpy())
    assert len(set(ours)) > 1 or len(set(np.concatenate(logits).argmax(-1))) == 1
    np.testing.assert_array_equal(ours, np.concatenate(logits).argmax(-1))
