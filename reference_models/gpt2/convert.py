"""Checkpoints from and to Hugging Face's GPT2LMHeadModel.

python convert.py from_huggingface gpt2_folder --params configs/params_small.yaml
python convert.py to_huggingface gpt2_folder --params model_dir/params.yaml
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from model import EPSILON, model_fn
from params import Model, Params

from csrun.data import Dataset
from csrun.params.convert import Conversion, convert
from csrun.records.huggingface import same

RULES = {
    "wte/embeddings": same("transformer.wte.weight"),
    "wpe/embeddings": same("transformer.wpe.weight"),
    "h/{n}/ln_1/gamma": same("transformer.h.{n}.ln_1.weight"),
    "h/{n}/ln_1/beta": same("transformer.h.{n}.ln_1.bias"),
    "h/{n}/attn/qkv/kernel": same("transformer.h.{n}.attn.c_attn.weight"),  # [in, out] there, too
    "h/{n}/attn/qkv/bias": same("transformer.h.{n}.attn.c_attn.bias"),
    "h/{n}/attn/out/kernel": same("transformer.h.{n}.attn.c_proj.weight"),
    "h/{n}/attn/out/bias": same("transformer.h.{n}.attn.c_proj.bias"),
    "h/{n}/ln_2/gamma": same("transformer.h.{n}.ln_2.weight"),
    "h/{n}/ln_2/beta": same("transformer.h.{n}.ln_2.bias"),
    "h/{n}/mlp/up/kernel": same("transformer.h.{n}.mlp.c_fc.weight"),
    "h/{n}/mlp/up/bias": same("transformer.h.{n}.mlp.c_fc.bias"),
    "h/{n}/mlp/down/kernel": same("transformer.h.{n}.mlp.c_proj.weight"),
    "h/{n}/mlp/down/bias": same("transformer.h.{n}.mlp.c_proj.bias"),
    "ln_f/gamma": same("transformer.ln_f.weight"),
    "ln_f/beta": same("transformer.ln_f.bias"),
}
SIZES = {
    "vocab_size": "vocabulary",
    "n_positions": "max_position_embeddings",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_heads",
    "resid_pdrop": "dropout",
    "attn_pdrop": "attention_dropout",
}
FIXED = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": EPSILON,
    "n_inner": None,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def example(params: Params) -> Dataset:
    """Return a data set with one batch of one sample."""
    return Dataset.from_arrays(np.zeros((1, params.model.sequence_length), np.int32)).batch(1)


def from_config(config: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """Limit the sequence length of the params file to the positions of the saved model."""
    return {"sequence_length": min(model.sequence_length, config["n_positions"])}


def to_config(model: Model) -> dict[str, Any]:
    """Return the other keys of config.json."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "embd_pdrop": model.dropout,
        "bos_token_id": model.vocabulary - 1,
        "eos_token_id": model.vocabulary - 1,
    }


CONVERSION = Conversion(
    schema=Params,
    default_params=Path(__file__).parent / "configs" / "params.yaml",
    model_fn=model_fn,
    example=example,
    model_type="gpt2",
    sizes=SIZES,
    fixed=FIXED,
    rules=RULES,
    from_config=from_config,
    to_config=to_config,
    prefix="transformer.",
    equal_keys={"embd_pdrop": "resid_pdrop"},
    ignored=(".attn.bias", ".attn.masked_bias"),  # the causal mask
    tied={"lm_head.weight": "transformer.wte.weight"},
)

if __name__ == "__main__":
    convert(CONVERSION)
