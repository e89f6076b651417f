"""One training step of a transformer, compiled and in PyTorch, from equal weights and batches.

Both sides take one batch in memory, compute loss and gradients, and update by AdamW; on
csrun's, the compiled program runs in this process, without a runtime around it. The reference
models' modules have the same names: one workload a process.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

TESTS = Path(__file__).parents[1]
MODELS = TESTS.parent / "reference_models"
IGNORED = -100  # the label of a token that is not to be found
MASKED_SHARE = 0.15
RATE, DECAY = 1e-3, 0.01

Step = Callable[[], None]


@dataclass(frozen=True)
class Workload:
    """A reference model and its sizes, in the words of its params file."""

    name: str
    model: str
    batch: int
    length: int
    vocabulary: int
    sizes: dict[str, int] = field(default_factory=dict)
    dropout: float = 0.0  # that of attention's weights, too

    def dropping(self, rate: float) -> "Workload":
        """The same with dropout."""
        return replace(self, name=f"{self.name}, dropout {rate}", dropout=rate)


def gpt(name: str, batch: int, vocabulary: int, width: int, layers: int, heads: int) -> Workload:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_heads": heads}
    return Workload(name, "gpt2", batch, 256, vocabulary, sizes)


BERT_SIZES = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_heads": 8,
    "intermediate_size": 2048,
}
GPT = gpt("GPT, d 384, 6 layers, T 256, batch 4, bytes", 4, 256, 384, 6, 6)
WIDE_GPT = gpt("GPT-2's width, d 768, 4 layers, T 256, batch 2", 2, 50257, 768, 4, 12)
BERT = Workload("BERT, d 512, 4 layers, T 128, batch 8, bytes", "bert", 8, 128, 260, BERT_SIZES)
WORKLOADS = (GPT, WIDE_GPT, BERT, GPT.dropping(0.1), BERT.dropping(0.1))


@dataclass(frozen=True)
class Training:
    """A prepared workload: its batch as a data set, and initial weights.

    executable: in machine code where this host has it; by_numpy: with NumPy kernels.
    """

    params: Any
    dataset: Any
    executable: Any
    by_numpy: Any
    weights: dict[str, Any]

    @property
    def flops(self) -> float:
        """Operations of a step's kernels, a multiply-add counted as two."""
        layers = self.executable.plan.layers
        return sum(layer.forward_flops + layer.backward_flops for layer in layers)

    @property
    def flat(self) -> tuple[Any, ...]:
        """The arrays of the batch."""
        return tuple(next(iter(self.dataset)))

    def ours(self, threads: int, by_numpy: bool = False) -> Step:
        """One step of the compiled program."""
        executable = self.by_numpy if by_numpy else self.executable
        return program_step(executable, self.weights, self.flat, threads)

    def theirs(self, autocast: bool = False, compiled: bool = False) -> Step:
        """One step of the same network in PyTorch; autocast: products of bfloat16."""
        import torch
        from support.torch_bert import TorchBert
        from support.torch_gpt2 import TorchGpt2

        batch = self.dataset.nested(self.flat)
        peer_of = TorchBert if isinstance(batch[0], dict) else TorchGpt2
        peer = peer_of(torch, self.weights, self.params.model)
        optimizer = torch.optim.AdamW(list(peer.weights.values()), RATE, weight_decay=DECAY)
        loss_of = torch.compile(peer.loss) if compiled else peer.loss

        def run() -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = loss_of(*batch)
            loss.backward()
            optimizer.step()

        return run


def program_step(executable: Any, weights: Any, batch: tuple[Any, ...], threads: int) -> Step:
    """One training step of a compiled program on a batch, with this many threads."""
    from support.programs import Machine, step_of
    from threadpoolctl import ThreadpoolController

    from csrun.executable import Runtime
    from csrun.executable.threads import threads_of
    from csrun.runtime.step.updates import Updates

    plan, count = executable.plan, threads_of(executable.plan, threads)
    machine = Machine(executable, weights)
    runtime = Runtime(seed=0, threads=count.kernels)
    visits = executable.wafer_program(machine.arena, machine.store, runtime).visits
    updates = Updates(plan, executable.update_program(machine.store, runtime))
    step = step_of(plan, batch, len(batch[0]))
    libraries = ThreadpoolController()

    def run() -> None:
        with libraries.limit(limits=count.blas, user_api="blas"):
            for visit in visits:
                visit(batch, step)
            for group in plan.deliveries:
                updates.deliver(group, step)
        step.index += 1

    return run


def training_of(
    workload: Workload, root: Path, storage: Any = None, products: str = "own"
) -> Training:
    """The workload compiled into `root` for a pipelined run.

    storage: its 16-bit format, if any. products: those of its machine code, as in a plan
    """
    from csrun.data import Dataset

    sys.path[:0] = [str(TESTS), str(MODELS / workload.model)]
    from support.programs import options_of

    from csrun.compiler import compile_model
    from csrun.executable import machine_code

    random = np.random.default_rng(1)
    params = _params(workload)
    dataset = Dataset.from_batches([_batch(workload, random)])
    by_numpy = options_of(kernels="numpy")
    own = options_of(kernels="llvm", products=products) if machine_code.is_supported() else by_numpy
    executable, numpy_form = (
        compile_model(_module(params, dataset, storage), root / name, options).executable
        for name, options in (("own", own), ("numpy", by_numpy))
    )
    weights = {
        p.name: (0.02 * random.standard_normal(p.shape) + p.name.endswith("gamma")).astype("f")
        for p in executable.plan.parameters
    }
    return Training(params, dataset, executable, numpy_form, weights)


def _params(workload: Workload) -> Any:
    from params import Params

    from csrun import nn
    from csrun.params import load

    params = load(Params, MODELS / workload.model / "configs" / "params.yaml")
    lengths = dict.fromkeys(("sequence_length", "max_position_embeddings"), workload.length)
    model = msgspec.structs.replace(
        params.model,
        vocabulary=workload.vocabulary,
        dropout=workload.dropout,
        attention_dropout=workload.dropout,
        **lengths,
        **workload.sizes,
    )
    optimizer = nn.AdamW(RATE, weight_decay=DECAY)
    return msgspec.structs.replace(params, model=model, optimizer=optimizer)


def _batch(workload: Workload, random: np.random.Generator) -> tuple[Any, Any]:
    """Random tokens; of BERT's, a share is to be found, and the first sample is half padding."""
    shape = workload.batch, workload.length
    tokens, others = (random.integers(0, workload.vocabulary, shape).astype("i") for _ in "xy")
    if workload.model == "gpt2":
        return tokens, others
    mask, segments = np.ones(shape, "?"), np.zeros(shape, "i")
    half = workload.length // 2
    mask[0, half:], segments[:, half:] = False, 1
    features = {"input_ids": tokens, "segment_ids": segments, "mask": mask}
    labels = np.where(random.random(shape) < MASKED_SHARE, others, IGNORED).astype("i")
    follows = random.integers(0, 2, workload.batch).astype("i")
    return features, {"masked_lm_labels": labels, "next_sentence": follows}


def _module(params: Any, dataset: Any, storage: Any) -> Any:
    """Return the traced training step, without outputs for the host."""
    from model import model_fn

    from csrun import nn
    from csrun.base.mode import RunMode
    from csrun.cirh import set_storage
    from csrun.nn.tracer import Tracer

    specs = dataset.element_spec()
    with Tracer("float32") as tracer:
        tensors = [
            tracer.input(name, spec.shape, str(spec.dtype))
            for name, spec in zip(dataset.names(len(specs)), specs, strict=True)
        ]
        spec = model_fn(*dataset.nested(tensors), nn.TRAIN, params)
        module = tracer.finish(RunMode.TRAIN, spec.loss, spec.train_op, [])
    if storage is not None:
        set_storage(module, storage)
    return module
