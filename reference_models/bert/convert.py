"""Checkpoints from and to Hugging Face's BertForPreTraining and BertForSequenceClassification.

python convert.py from_huggingface bert_folder --params configs/params_base.yaml
python convert.py to_huggingface bert_folder --params model_dir/params.yaml
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from model import EPSILON, SEGMENTS, model_fn
from params import Model, Params

from csrun.data import Dataset
from csrun.params.convert import Conversion, convert
from csrun.records.huggingface import joined, same, transposed

LAYER = "bert.encoder.layer.{n}"
SELF = f"{LAYER}.attention.self"
CLASSIFIER = "BertForSequenceClassification"

RULES = {
    "embeddings/word/embeddings": same("bert.embeddings.word_embeddings.weight"),
    "embeddings/position/embeddings": same("bert.embeddings.position_embeddings.weight"),
    "embeddings/segment/embeddings": same("bert.embeddings.token_type_embeddings.weight"),
    "embeddings/norm/gamma": same("bert.embeddings.LayerNorm.weight"),
    "embeddings/norm/beta": same("bert.embeddings.LayerNorm.bias"),
    "encoder/{n}/attention/qkv/kernel": transposed(
        f"{SELF}.query.weight", f"{SELF}.key.weight", f"{SELF}.value.weight"
    ),
    "encoder/{n}/attention/qkv/bias": joined(
        f"{SELF}.query.bias", f"{SELF}.key.bias", f"{SELF}.value.bias"
    ),
    "encoder/{n}/attention/out/kernel": transposed(f"{LAYER}.attention.output.dense.weight"),
    "encoder/{n}/attention/out/bias": same(f"{LAYER}.attention.output.dense.bias"),
    "encoder/{n}/attention_norm/gamma": same(f"{LAYER}.attention.output.LayerNorm.weight"),
    "encoder/{n}/attention_norm/beta": same(f"{LAYER}.attention.output.LayerNorm.bias"),
    "encoder/{n}/up/kernel": transposed(f"{LAYER}.intermediate.dense.weight"),
    "encoder/{n}/up/bias": same(f"{LAYER}.intermediate.dense.bias"),
    "encoder/{n}/down/kernel": transposed(f"{LAYER}.output.dense.weight"),
    "encoder/{n}/down/bias": same(f"{LAYER}.output.dense.bias"),
    "encoder/{n}/norm/gamma": same(f"{LAYER}.output.LayerNorm.weight"),
    "encoder/{n}/norm/beta": same(f"{LAYER}.output.LayerNorm.bias"),
    "pooler/dense/kernel": transposed("bert.pooler.dense.weight"),
    "pooler/dense/bias": same("bert.pooler.dense.bias"),
    "next_sentence/dense/kernel": transposed("cls.seq_relationship.weight"),
    "next_sentence/dense/bias": same("cls.seq_relationship.bias"),
    "masked_lm/dense/kernel": transposed("cls.predictions.transform.dense.weight"),
    "masked_lm/dense/bias": same("cls.predictions.transform.dense.bias"),
    "masked_lm/norm/gamma": same("cls.predictions.transform.LayerNorm.weight"),
    "masked_lm/norm/beta": same("cls.predictions.transform.LayerNorm.bias"),
    "masked_lm/out/bias": same("cls.predictions.bias"),
    "classifier/kernel": transposed("classifier.weight"),
    "classifier/bias": same("classifier.bias"),
}
SIZES = {
    "vocab_size": "vocabulary",
    "max_position_embeddings": "max_position_embeddings",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_heads",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
FIXED = {
    "hidden_act": "gelu",
    "layer_norm_eps": EPSILON,
    "type_vocab_size": SEGMENTS,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def example(params: Params) -> Dataset:
    """Return a data set with one batch of one sample."""
    ids = np.zeros((1, params.model.sequence_length), np.int32)

    def named(ids: np.ndarray, segments: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        return {"input_ids": ids, "segment_ids": segments, "mask": mask}

    return Dataset.from_arrays(ids, ids, np.ones(ids.shape, np.bool_)).batch(1).map(named)


def from_config(config: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """Take the classes of the params file, or else those of the saved model."""
    longest = config["max_position_embeddings"]
    found: dict[str, Any] = {"sequence_length": min(model.sequence_length, longest)}
    if model.classes is None and CLASSIFIER in (config.get("architectures") or ()):
        found["classes"] = len(config.get("id2label", (0, 1)))
    return found


def to_config(model: Model) -> dict[str, Any]:
    """Return the other keys of config.json."""
    if model.classes is None:
        found: dict[str, Any] = {"architectures": ["BertForPreTraining"]}
    else:
        labels = {str(label): f"LABEL_{label}" for label in range(model.classes)}
        found = {"architectures": [CLASSIFIER], "id2label": labels}
        found["label2id"] = {name: int(label) for label, name in labels.items()}
    return found


CONVERSION = Conversion(
    schema=Params,
    default_params=Path(__file__).parent / "configs" / "params.yaml",
    model_fn=model_fn,
    example=example,
    model_type="bert",
    sizes=SIZES,
    fixed=FIXED,
    rules=RULES,
    from_config=from_config,
    to_config=to_config,
    prefix="bert.",
    spellings={"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
    ignored=("embeddings.position_ids",),
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    equal_keys={"classifier_dropout": "hidden_dropout_prob"},
    may_lack=("classifier/", "pooler/"),
)

if __name__ == "__main__":
    convert(CONVERSION)
