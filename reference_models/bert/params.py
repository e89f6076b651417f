"""The params file of the BERT models: its sections, their keys, what they may hold."""

from typing import Annotated

import msgspec

from csrun import nn
from csrun.params import RunConfig

Positive = Annotated[int, msgspec.Meta(ge=1)]
Token = Annotated[int, msgspec.Meta(ge=0)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Rate = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class SpecialTokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ids of what is no text: padding, the begin, the end of a segment, a masked token."""

    pad: Token
    cls: Token
    sep: Token
    mask: Token


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A text, a file of token ids, and how samples are drawn from it; of each class one, where the
    model has classes.

    masked_share: of the tokens of a sample, those that are to be found. short_share: of the
    samples, those whose length is drawn; the others have the model's.
    """

    file: str | tuple[str, ...]
    batch_size: Positive
    masked_share: Share = 0.15
    short_share: Share = 0.1
    seed: Seed = 1


class TrainInput(Input, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The training text; each window of it begins so many samples, which are drawn anew."""

    duplicates: Positive = 10
    shuffle_seed: Seed = 1


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The sizes of the network; dropout is that of embeddings and of what each block adds,
    attention_dropout that of attention's weights.

    classes: of texts that are to be told apart; without it, masked tokens and second segments are.
    """

    vocabulary: Positive
    max_position_embeddings: Positive
    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_heads: Positive
    sequence_length: Annotated[int, msgspec.Meta(ge=8)]
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    classes: Annotated[int, msgspec.Meta(ge=2)] | None = None


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole params file."""

    train_input: TrainInput
    eval_input: Input
    special_tokens: SpecialTokens
    model: Model
    optimizer: nn.Optimizer
    runconfig: RunConfig
