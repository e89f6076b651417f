"""Checkpoints from and to Hugging Face's GPTJForCausalLM.

python convert.py from_huggingface gptj_folder --params configs/params_6B.yaml
python convert.py to_huggingface gptj_folder --params model_dir/params.yaml
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from model import EPSILON, model_fn
from params import Model, Params

from csrun.data import Dataset
from csrun.params.convert import Conversion, convert
from csrun.records.huggingface import same, transposed

RULES = {
    "wte/embeddings": same("transformer.wte.weight"),
    "h/{n}/ln_1/gamma": same("transformer.h.{n}.ln_1.weight"),
    "h/{n}/ln_1/beta": same("transformer.h.{n}.ln_1.bias"),
    "h/{n}/attn/q/kernel": transposed("transformer.h.{n}.attn.q_proj.weight"),
    "h/{n}/attn/k/kernel": transposed("transformer.h.{n}.attn.k_proj.weight"),
    "h/{n}/attn/v/kernel": transposed("transformer.h.{n}.attn.v_proj.weight"),
    "h/{n}/attn/out/kernel": transposed("transformer.h.{n}.attn.out_proj.weight"),
    "h/{n}/mlp/up/kernel": transposed("transformer.h.{n}.mlp.fc_in.weight"),
    "h/{n}/mlp/up/bias": same("transformer.h.{n}.mlp.fc_in.bias"),
    "h/{n}/mlp/down/kernel": transposed("transformer.h.{n}.mlp.fc_out.weight"),
    "h/{n}/mlp/down/bias": same("transformer.h.{n}.mlp.fc_out.bias"),
    "ln_f/gamma": same("transformer.ln_f.weight"),
    "ln_f/beta": same("transformer.ln_f.bias"),
    "lm_head/kernel": transposed("lm_head.weight"),
    "lm_head/bias": same("lm_head.bias"),
}
SIZES = {
    "vocab_size": "vocabulary",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_heads",
    "rotary_dim": "rotary_dim",
    "resid_pdrop": "dropout",
    "attn_pdrop": "attention_dropout",
}
FIXED = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": EPSILON,
    "n_inner": None,
    "tie_word_embeddings": False,
}


def example(params: Params) -> Dataset:
    """Return a data set with one batch of one sample."""
    return Dataset.from_arrays(np.zeros((1, params.model.sequence_length), np.int32)).batch(1)


def from_config(config: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """Limit the sequence length of the params file to the positions of the saved model."""
    longest = config.get("n_positions", model.sequence_length)
    return {"sequence_length": min(model.sequence_length, longest)}


def to_config(model: Model) -> dict[str, Any]:
    """Return the other keys of config.json; positions have no weights in GPT-J."""
    return {
        "architectures": ["GPTJForCausalLM"],
        "n_positions": model.sequence_length,
        "embd_pdrop": model.dropout,
        "bos_token_id": min(50256, model.vocabulary - 1),
        "eos_token_id": min(50256, model.vocabulary - 1),
    }


CONVERSION = Conversion(
    schema=Params,
    default_params=Path(__file__).parent / "configs" / "params_continuous_pretraining.yaml",
    model_fn=model_fn,
    example=example,
    model_type="gptj",
    sizes=SIZES,
    fixed=FIXED,
    rules=RULES,
    from_config=from_config,
    to_config=to_config,
    prefix="transformer.",
    equal_keys={"embd_pdrop": "resid_pdrop"},
    ignored=(".attn.bias", ".attn.masked_bias"),  # the causal mask
)

if __name__ == "__main__":
    convert(CONVERSION)
