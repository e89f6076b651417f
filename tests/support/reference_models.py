"""The transformers among the reference models at small sizes, compiled, and their PyTorch peers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from math import sqrt
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from support.programs import Machine, options_of
from support.torch_bert import TorchBert
from support.torch_gpt2 import TorchGpt2
from support.torch_gptj import TorchGptJ
from support.torch_models import DECAYED, TorchModel
from threadpoolctl import threadpool_limits

from csrun import nn
from csrun.base.half_formats import HalfFormat
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.data.formats import write_tokens
from csrun.estimator.model_trace import trace_model
from csrun.params import load

MODELS = Path(__file__).parents[2] / "reference_models"
TEXT, VOCABULARY = 57, 61  # ids of the text; bert's special ones are behind
BATCH, RATE, CLIP = 4, 1e-2, 0.5
SIZES = {
    "vocabulary": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "sequence_length": 16,
}

Batch = tuple[list[np.ndarray], tuple[Any, Any]]


@dataclass(frozen=True)
class SmallModel:
    """A reference model, its params file, sizes that are its own, and its peer.

    Its folder must be on the import path: the fixture of its name puts it there.
    """

    name: str
    file: str
    peer: type[TorchModel]
    sizes: dict[str, int] = field(default_factory=dict)

    def shipped(self, text: Path) -> Any:
        """The params as they are shipped, over a token file."""
        params = load(import_module("params").Params, MODELS / self.name / "configs" / self.file)
        return over(params, text)

    def params(self, folder: Path, **sizes: Any) -> Any:
        """The params of a small model, over a random text in the folder."""
        text = folder / "text.bin"
        write_tokens(text, [np.random.default_rng(1).integers(0, TEXT, 9000)], TEXT)
        params = changed(self.shipped(text), "model", **{**SIZES, **self.sizes, **sizes})
        params = changed(params, "train_input", batch_size=BATCH)
        if self.name == "bert":
            special = dict(zip(("pad", "cls", "sep", "mask"), range(TEXT, VOCABULARY), strict=True))
            params = changed(params, "special_tokens", **special)
            params = changed(params, "train_input", short_share=0.5, masked_share=0.15)
        optimizer = nn.AdamW(RATE, weight_decay=DECAYED, clip_norm=CLIP)
        return msgspec.structs.replace(params, optimizer=optimizer)

    def machine(
        self,
        root: Path,
        params: Any,
        precision: str = "float64",
        mode: ExecutionMode = ExecutionMode.WEIGHT_STREAMING,
    ) -> Machine:
        """The training, compiled, with random weights."""
        executable = compile_model(traced(params, precision), root, small_groups(mode)).executable
        random = np.random.default_rng(5)
        weights = {}
        for p in executable.plan.parameters:
            drawn = 0.1 * random.standard_normal(p.shape) + p.name.endswith("gamma")
            weights[p.name] = drawn.astype(p.dtype)
        return Machine(executable, weights)


SMALL_MODELS = {
    "gpt2": SmallModel("gpt2", "params.yaml", TorchGpt2, {"max_position_embeddings": 24}),
    "gptj": SmallModel("gptj", "params_continuous_pretraining.yaml", TorchGptJ, {"rotary_dim": 6}),
    "bert": SmallModel(
        "bert", "params.yaml", TorchBert, {"max_position_embeddings": 24, "intermediate_size": 64}
    ),
}


@contextmanager
def one_thread(torch: Any) -> Iterator[None]:
    """Small steps on one thread, as in a run: others would only wait, and take a core to do it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1, user_api="blas"):
        yield
    torch.set_num_threads(before)


def changed(params: Any, section: str, **values: Any) -> Any:
    """The params with other values in a section."""
    part = msgspec.structs.replace(getattr(params, section), **values)
    return msgspec.structs.replace(params, **{section: part})


def over(params: Any, train: Path, validation: Path | None = None) -> Any:
    """The params with other token files; the training's for validation, too, without one."""
    params = changed(params, "train_input", file=str(train))
    return changed(params, "eval_input", file=str(validation or train))


def small_groups(mode: ExecutionMode, kernels: str = "numpy") -> Any:
    """Options by which a small model has several groups."""
    return options_of(mode, group_bytes=1 << 14, kernels=kernels)


def traced(params: Any, precision: str = "float32", storage: HalfFormat | None = None) -> Any:
    """The training's module. storage: the 16-bit format of mixed precision."""
    model_fn, input_fn = import_module("model").model_fn, import_module("data").train_input_fn
    data = input_fn(params)
    return trace_model(model_fn, data, RunMode.TRAIN, params, precision, storage=storage).module


def batches(params: Any, count: int, precision: str = "float64") -> Iterator[Batch]:
    """Of the training's data: flat, as the wafer gets them, and nested."""
    dataset = import_module("data").train_input_fn(params)
    for flat in islice(dataset, count):
        typed = [a.astype(precision) if a.dtype.kind == "f" else a for a in flat]
        yield typed, dataset.nested(typed)


def weights_of(machine: Machine) -> dict[str, np.ndarray]:
    """A copy of each weight, by its name."""
    return {p.name: machine.state[p.name].copy() for p in machine.plan.parameters}


def assert_same_step(
    machine: Machine, peer: TorchModel, batch: Batch, rel: float, gradient_rel: float
) -> None:
    """Loss and gradients are the peer's.

    A gradient may be exactly zero, as that of attention's key bias: then both sides hold rounding
    noise, which counts against the global norm.
    """
    flat, nested = batch
    loss, slopes = peer.step(*nested)
    ours, gradients = machine.train(flat)
    assert abs(ours - loss) <= rel * abs(loss)
    assert gradients.keys() == slopes.keys()
    overall = sqrt(sum(float(np.sum(s.astype("d") ** 2)) for s in slopes.values()))
    for name, slope in slopes.items():
        least = 1e-2 * overall / sqrt(len(slopes))
        distance = np.linalg.norm(gradients[name].astype("d") - slope)
        assert distance <= gradient_rel * max(np.linalg.norm(slope), least), name
