"""Transformers of the user's own Model Zoo checkout (tag R_1.6.1), unchanged, beside PyTorch.

CSRUN_MODELZOO names the checkout; stand-ins for packages of its time are on PYTHONPATH. All data
sets are iterables, which a streamer walks to the batches that are its own.
"""

import csv
import os
import random
from pathlib import Path

import numpy as np
import pytest

if not os.environ.get("CSRUN_MODELZOO"):  # before the slow imports
    pytest.skip("CSRUN_MODELZOO names no checkout of R_1.6.1", allow_module_level=True)
torch = pytest.importorskip("torch")
pytest.importorskip("tensorboard", reason="the scripts write events with it")

from support.modelzoo_scripts import (  # noqa: E402
    CPU,
    CS,
    WSE,
    Zoo,
    losses,
    metrics,
    tensors,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3000),
]
SAMPLES, BATCH, LENGTH, WORDS, PREDICTED = 160, 8, 16, 60, 4
VOCABULARY = ("<pad>", "<unk>", "<s>", "</s>", *(f"w{number}" for number in range(WORDS - 4)))
INPUT = {
    "data_dir": "data",
    "vocab_size": WORDS,
    "max_sequence_length": LENGTH,
    "batch_size": BATCH,
    "shuffle": True,
    "shuffle_seed": 1,
    "num_workers": 1,
    "prefetch_factor": 2,
    "persistent_workers": True,
}
ENCODER = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "filter_size": 64,
    "max_position_embeddings": LENGTH,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "layer_norm_epsilon": 1.0e-5,
    "share_embedding_weights": True,
    "mixed_precision": False,
}
OPTIMIZER = {
    "optimizer_type": "AdamW",
    "weight_decay_rate": 0.01,
    "max_gradient_norm": 1.0,
    "loss_scaling_factor": "dynamic",
}


def two_rates(reset: bool) -> dict:
    """Learning rates whose second schedule begins in the middle of a run."""
    rates = ((0.0, 0.001, 5), (0.001, 0.0, 100))
    schedules = [
        {
            "scheduler": "Linear",
            "initial_learning_rate": first,
            "end_learning_rate": last,
            "steps": steps,
        }
        for first, last, steps in rates
    ]
    return {"learning_rate": schedules, "disable_lr_steps_reset": not reset}


MODELS = {
    "gpt2": {
        "input": {**INPUT, "data_processor": "GptHDF5DataProcessor"},
        "model": {
            **ENCODER,
            "use_position_embedding": True,
            "position_embedding_type": "learned",
            "attention_type": "scaled_dot_product",
            "nonlinearity": "gelu",
            "loss_weight": 1 / LENGTH,
        },
        "optimizer": {**OPTIMIZER, "correct_bias": True, "learning_rate": 0.001},
    },
    "bert": {
        "input": {
            **INPUT,
            "data_processor": "BertCSVDataProcessor",
            "max_predictions_per_seq": PREDICTED,
            "dynamic_mlm_scale": True,
        },
        "model": {
            **ENCODER,
            "encoder_nonlinearity": "gelu",
            "mlm_loss_weight": 0.25,
            "enable_vts": True,
        },
        "optimizer": {**OPTIMIZER, **two_rates(reset=False)},
    },
    "transformer": {
        "input": {
            **INPUT,
            "data_processor": "TransformerDynamicDataProcessor",
            "src_vocab_file": "vocab.txt",
            "tgt_vocab_file": "vocab.txt",
            "src_data_dir": "data",
            "src_max_sequence_length": LENGTH,
            "tgt_max_sequence_length": LENGTH,
            "dynamic_loss_weight": True,
        },
        "model": {
            "src_vocab_size": WORDS,
            "tgt_vocab_size": WORDS,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "dropout_rate": 0.0,
            "relu_dropout_rate": 0.0,
            "use_pre_encoder_decoder_dropout": True,
            "use_dropout_outside_residual_path": False,
            "d_kv": 8,
            "num_heads": 4,
            "d_ff": 64,
            "d_model": 32,
            "use_projection_bias_in_attention": False,
            "position_embedding_type": "fixed",
            "share_embedding_weights": True,
            "share_encoder_decoder_embedding": True,
            "use_t5_layer_norm": False,
            "use_pre_encoder_decoder_layer_norm": True,
            "encoder_nonlinearity": "gelu",
            "decoder_nonlinearity": "gelu",
            "layer_norm_epsilon": 1.0e-5,
            "use_ffn_bias": True,
            "lm_loss_weight": 0.033,
            "use_transformer_initialization": True,
            "mixed_precision": False,
            "enable_vts": True,
        },
        "optimizer": {
            "optimizer_type": "Adam",
            "beta1": 0.9,
            "beta2": 0.98,
            "epsilon": 1.0e-6,
            "loss_scaling_factor": "dynamic",
            **two_rates(reset=True),
        },
    },
    "t5": {
        "input": {
            **INPUT,
            "data_processor": "T5DynamicDataProcessor",
            "src_vocab_file": "vocab.txt",
            "src_data_dir": "data",
            "extra_ids": 10,
            "src_max_sequence_length": 2 * LENGTH,
            "tgt_max_sequence_length": LENGTH,
        },
        "model": {
            "src_vocab_size": WORDS,
            "extra_ids": 10,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "dropout_rate": 0.0,
            "d_kv": 8,
            "num_heads": 4,
            "d_ff": 64,
            "d_model": 32,
            "position_embedding_type": "relative",
            "share_embedding_weights": True,
            "share_encoder_decoder_embedding": True,
            "encoder_nonlinearity": "gelu",  # a ReLU amplifies the difference in bias correction
            "decoder_nonlinearity": "gelu",
            "layer_norm_epsilon": 1e-6,
            "lm_loss_weight": 0.015,
            "mixed_precision": False,
            "enable_vts": True,
        },
        "optimizer": {**OPTIMIZER, "correct_bias": True, **two_rates(reset=True)},
    },
}
RUN = {"max_steps": 16, "log_steps": 1, "checkpoint_steps": 8, "eval_steps": 5, "seed": 1}
SEVERAL = (*WSE, "--total-nodes", "3", "--tasks-per-node", "2", "python-ws")


def write_tokens(folder: Path) -> None:
    """HDF5 files of token ids, masks and the following tokens."""
    h5py = pytest.importorskip("h5py", reason="the data of gpt2 are HDF5 files")
    rng = np.random.default_rng(1)
    with h5py.File(folder / "a.h5", "w") as file:
        file.attrs["n_examples"] = SAMPLES
        for number in range(SAMPLES):
            ids = rng.integers(0, WORDS, LENGTH + 1)
            mask = np.arange(LENGTH) < rng.integers(LENGTH // 2, LENGTH + 1)
            example = np.stack([ids[:-1], mask, ids[1:]]).astype(np.int32)
            file[f"example_{number}"] = example


def write_sentences(folder: Path) -> None:
    """CSV files of two sentences with masked tokens."""
    rng, names = np.random.default_rng(2), "input_ids attention_mask token_type_ids"
    columns = f"{names} masked_lm_positions masked_lm_weights labels next_sentence_label".split()
    with (folder / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for _ in range(SAMPLES):
            used, masked = rng.integers(LENGTH // 2, LENGTH + 1), rng.integers(1, PREDICTED + 1)
            row = (
                rng.integers(0, WORDS, LENGTH).tolist(),
                [int(place < used) for place in range(LENGTH)],
                [int(place >= used // 2) for place in range(LENGTH)],
                sorted(rng.choice(LENGTH // 2, PREDICTED, replace=False).tolist()),
                [int(place < masked) for place in range(PREDICTED)],
                rng.integers(0, WORDS, PREDICTED).tolist(),
                int(rng.integers(2)),
            )
            writer.writerow(dict(zip(columns, row, strict=True)))
    (folder / "meta.dat").write_text(f"a.csv {SAMPLES}\n")


def write_translations(folder: Path) -> None:
    """Lines of text and of their translations."""
    (folder.parent / "vocab.txt").write_text("\n".join(VOCABULARY))
    words = random.Random(3)
    for name in ("a.txt", "b.txt"):
        lines = (words.choices(VOCABULARY[4:], k=words.randint(5, 14)) for _ in range(SAMPLES))
        (folder / name).write_text("\n".join(map(" ".join, lines)))
    (folder / "meta.dat").write_text(f"data/a.txt data/b.txt {SAMPLES}\n")


def write_text(folder: Path) -> None:
    """Lines of text."""
    (folder.parent / "vocab.txt").write_text("\n".join(VOCABULARY))
    words = random.Random(1)
    lines = (words.choices(VOCABULARY[4:], k=words.randint(20, 60)) for _ in range(3 * SAMPLES))
    (folder / "a.txt").write_text("\n".join(map(" ".join, lines)))
    (folder / "meta.dat").write_text(f"a.txt {3 * SAMPLES}\n")


WRITERS = {
    "gpt2": write_tokens,
    "bert": write_sentences,
    "transformer": write_translations,
    "t5": write_text,
}


def zoo_of(name: str, folder: Path) -> Zoo:
    """A small model of the name, with its data."""
    (folder / "data").mkdir()
    WRITERS[name](folder / "data")
    given = MODELS[name]
    parts = {"train_input": given["input"], "eval_input": {**given["input"], "shuffle": False}}
    params = {**parts, "model": given["model"], "optimizer": given["optimizer"], "runconfig": RUN}
    return Zoo(folder, f"transformers/pytorch/{name}", params)


def numbers(log: str) -> dict[int, float]:
    return {step: float(loss) for step, loss in losses(log).items()}


@pytest.mark.parametrize("name", MODELS)
def test_a_transformer_trains_resumes_and_evaluates_as_in_plain_pytorch(
    name: str, tmp_path: Path, state: str
) -> None:
    zoo = zoo_of(name, tmp_path)
    cpu = zoo.run("-m", "train", "-o", "cpu", by=CPU)
    alone = zoo.run("-m", "train", "-o", "alone", *CS)
    job = zoo.run("-m", "train", "-o", "job", "--cs_ip", "127.0.0.2", by=SEVERAL)
    assert losses(alone) == losses(job)
    assert list(numbers(cpu)) == list(range(1, 17))
    assert numbers(alone) == pytest.approx(numbers(cpu), rel=0, abs=1.1e-5)  # of 5 decimals
    ours, of_job = (tensors(zoo.checkpoint(run, 16)) for run in ("alone", "job"))
    torch.testing.assert_close(of_job, ours, rtol=0, atol=0)
    models = (zoo.checkpoint(run, 16)["model"] for run in ("alone", "cpu"))
    torch.testing.assert_close(*map(tensors, models), rtol=0, atol=1e-5)
    from_8 = ("-m", "train", "--checkpoint_path", "alone/checkpoint_8.mdl")
    again = numbers(zoo.run(*from_8, "-o", "again", *CS))
    cpu_again = numbers(zoo.run(*from_8, "-o", "cpu_again", by=CPU))
    assert list(again) == list(range(9, 17))
    assert again == pytest.approx(cpu_again, rel=0, abs=1.1e-5)
    evaluated = ("-m", "eval", "--checkpoint_path", "cpu/checkpoint_16.mdl", "-o", "eval")
    wanted, found = metrics(zoo.run(*evaluated, by=CPU)), metrics(zoo.run(*evaluated, *CS))
    assert len(wanted) > 1
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_transformer_is_compiled_without_a_run(name: str, tmp_path: Path, state: str) -> None:
    zoo = zoo_of(name, tmp_path)
    said = zoo.run("-m", "train", "-o", "compiled", "--compile_only")
    assert "Compile for training completed successfully!" in said
    said = zoo.run("-m", "eval", "-o", "validated", "--validate_only")
    assert "Compile for evaluation completed successfully!" in said
