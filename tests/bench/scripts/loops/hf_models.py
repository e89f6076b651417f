"""Small configurations of transformers' models, and synthetic samples for them."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

VOCABULARY, LENGTH, CLASSES = 99, 24, 3
IMAGE, PATCH = 32, 8
Sample = dict[str, Tensor]

# Names of sizes differ between configurations; each takes those that it has.
TEXT_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "n_embd": 32,
    "d_model": 32,
    "dim": 32,
    "embedding_size": 32,
    "word_embed_proj_dim": 32,
    "intermediate_size": 64,
    "hidden_dim": 64,
    "ffn_dim": 64,
    "d_ff": 64,
    "d_kv": 8,
    "head_dim": 8,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "num_labels": CLASSES,
    "use_cache": False,
}
CONFIGURED: dict[str, dict[str, Any]] = {
    "DebertaV2ForSequenceClassification": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
    },
    "T5ForConditionalGeneration": {"decoder_start_token_id": 0},
    "Gemma2ForCausalLM": {"sliding_window": 16},
    "MambaForCausalLM": {"state_size": 4, "num_key_value_heads": None, "num_labels": CLASSES},
    "ViTForImageClassification": {"image_size": IMAGE, "patch_size": PATCH},
    "SwinForImageClassification": {
        "image_size": IMAGE, "patch_size": 2, "window_size": 4, "embed_dim": 16,
        "depths": [2, 2], "num_heads": [2, 4],
    },
    "ResNetForImageClassification": {
        "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic",
    },
    "ConvNextForImageClassification": {
        "hidden_sizes": [16, 32, 32, 32], "depths": [1, 1, 1, 1], "patch_size": 4,
        "image_size": IMAGE,
    },
    "MobileNetV2ForImageClassification": {"depth_multiplier": 0.35, "image_size": IMAGE},
    "Wav2Vec2ForSequenceClassification": {
        "conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 8],
        "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
        "classifier_proj_size": 32, "mask_time_prob": 0.0, "mask_feature_prob": 0.0,
    },
}  # fmt: skip
WITHOUT_TEXT = ("Swin", "ResNet", "ConvNext", "MobileNet")


def make_model(name: str) -> transformers.PreTrainedModel:
    """Model of a class of transformers, with random weights and without dropout."""
    kind = getattr(transformers, name)
    if name == "CLIPModel":
        return kind(clip_config())
    given = dict(CONFIGURED.get(name, {}), num_labels=CLASSES)
    known = vars(kind.config_class())
    names = kind.config_class.attribute_map
    if not name.startswith(WITHOUT_TEXT):
        sizes = {key: value for key, value in TEXT_SIZES.items() if key in known}
        given = {**sizes, **{k: v for k, v in given.items() if v is not None or k in known}}
    config = kind.config_class(**{names.get(key, key): value for key, value in given.items()})
    return kind(without_dropout(config))


def clip_config() -> transformers.CLIPConfig:
    sizes = {key: TEXT_SIZES[key] for key in ("hidden_size", "intermediate_size")}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "projection_dim": 16}
    text = dict(sizes, vocab_size=VOCABULARY, max_position_embeddings=64, eos_token_id=2)
    vision = dict(sizes, image_size=IMAGE, patch_size=PATCH)
    return transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)


def without_dropout(config: Any) -> Any:
    """The configuration with each rate of a dropout or layer drop at 0."""
    for name, value in vars(config).items():
        if isinstance(value, float) and any(word in name for word in ("drop", "pdrop")):
            setattr(config, name, 0.0)
    return config


def make_samples(model: transformers.PreTrainedModel, count: int) -> list[Sample]:
    """Synthetic samples of the model's task, the same in each process."""
    name = type(model).__name__
    generator = torch.Generator().manual_seed(1)
    make: Callable[[torch.Generator], Sample] = image_sample
    if name == "CLIPModel":
        make = caption_sample
    elif name.startswith("Wav2Vec2"):
        make = sound_sample
    elif "ForImage" not in name:
        make = TEXT_SAMPLES[name[name.index("For") :] if "For" in name else "ForCausalLM"]
    return [make(generator) for _ in range(count)]


def call_options(model: transformers.PreTrainedModel) -> dict[str, Any]:
    """Arguments of the model's call besides the batch."""
    return {"return_loss": True} if type(model).__name__ == "CLIPModel" else {}


def text_sample(generator: torch.Generator) -> Sample:
    """Token numbers that end with padding, and their mask."""
    length = int(torch.randint(LENGTH // 2, LENGTH + 1, (), generator=generator))
    ids = torch.randint(3, VOCABULARY, (LENGTH,), generator=generator)
    mask = (torch.arange(LENGTH) < length).long()
    ids = torch.where(torch.arange(LENGTH) == length - 1, 2, ids)  # end of the sentence
    return {"input_ids": ids * mask, "attention_mask": mask}


def causal_sample(generator: torch.Generator) -> Sample:
    found = text_sample(generator)
    labels = torch.where(found["attention_mask"] == 1, found["input_ids"], -100)
    return {**found, "labels": labels}


def masked_sample(generator: torch.Generator) -> Sample:
    found = text_sample(generator)
    chosen = (torch.rand(LENGTH, generator=generator) < 0.3) & (found["attention_mask"] == 1)
    chosen[0] = True
    labels = torch.where(chosen, found["input_ids"], -100)
    return {**found, "input_ids": torch.where(chosen, 3, found["input_ids"]), "labels": labels}


def classified_sample(generator: torch.Generator) -> Sample:
    found = text_sample(generator)
    return {**found, "labels": torch.randint(0, CLASSES, (), generator=generator)}


def replaced_sample(generator: torch.Generator) -> Sample:
    """Tokens of which ELECTRA tells those that were replaced."""
    found = text_sample(generator)
    return {**found, "labels": torch.randint(0, 2, (LENGTH,), generator=generator)}


def translated_sample(generator: torch.Generator) -> Sample:
    return {**text_sample(generator), "labels": causal_sample(generator)["labels"]}


def image_sample(generator: torch.Generator) -> Sample:
    pixels = torch.randn(3, IMAGE, IMAGE, generator=generator)
    return {"pixel_values": pixels, "labels": torch.randint(0, CLASSES, (), generator=generator)}


def caption_sample(generator: torch.Generator) -> Sample:
    pixels = torch.randn(3, IMAGE, IMAGE, generator=generator)
    return {**text_sample(generator), "pixel_values": pixels}


def sound_sample(generator: torch.Generator) -> Sample:
    values = torch.randn(800, generator=generator)
    return {"input_values": values, "labels": torch.randint(0, CLASSES, (), generator=generator)}


TEXT_SAMPLES: dict[str, Callable[[torch.Generator], Sample]] = {
    "ForCausalLM": causal_sample,
    "LMHeadModel": causal_sample,
    "ForMaskedLM": masked_sample,
    "ForSequenceClassification": classified_sample,
    "ForPreTraining": replaced_sample,
    "ForConditionalGeneration": translated_sample,
}
