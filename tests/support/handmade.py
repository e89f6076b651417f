"""An Executable written by hand, so that the runtime is tested without the compiler.

The model: h = x W0, y = h W1, loss = sum((y - t)^2) / 2 over rows, SGD with learning rate 0.01.
Each weight matrix is a layer and a separate group.
"""

import threading
from pathlib import Path

import msgspec
import numpy as np

from csrun.base.mode import ExecutionMode
from csrun.data.delivery import Delivery
from csrun.data.input_operators import StageClock
from csrun.executable import (
    Buffer,
    Combine,
    Constant,
    Estimate,
    Executable,
    Group,
    Initializer,
    InitializerKind,
    InputSpec,
    Layer,
    Output,
    Parameter,
    Plan,
    Rectangle,
    Region,
    RunMode,
    StoreLayout,
    Visit,
    load,
    manifest_of,
)
from csrun.executable.executable import MANIFEST_FILE, PLAN_FILE, PROGRAM_FILE

BATCH, IN, HIDDEN, OUT = 4, 3, 8, 2
RATE = 0.01

PROGRAM = """
import numpy as np
from csrun.executable import UpdateProgram, WaferProgram

def bind_wafer(v, runtime):
    h, y, d, dh = v["h"], v["y"], v["d"], v["dh"]
    w0, w1, loss = v["first/kernel"], v["second/kernel"], v["loss"]
    def forward_0(batch, step):
        np.matmul(batch[0], w0, out=h)
    def forward_1(batch, step):
        np.matmul(h, w1, out=y)
        np.subtract(y, batch[1], out=d)
        d[step.valid:] = 0
        loss[0] = 0.5 * float((d * d).sum())
    def backward_1(batch, step):
        np.divide(d, step.rows, out=d)
        np.matmul(h.T, d, out=v["gradient:second/kernel"])
        np.matmul(d, w1.T, out=dh)
    def backward_0(batch, step):
        np.matmul(batch[0].T, dh, out=v["gradient:first/kernel"])
    return WaferProgram([forward_0, forward_1, backward_1, backward_0])

def bind_update(v, runtime):
    def update(g):
        def run(step):
            v[f"weights/{g}"] -= 0.01 * v[f"gradients/{g}"]
        return run
    return UpdateProgram([update(0), update(1)])
"""

SIZES = {"first/kernel": (IN, HIDDEN), "second/kernel": (HIDDEN, OUT)}


def make(directory: Path, mode: ExecutionMode) -> Executable:
    """Write the Executable into a folder and load it."""
    directory.mkdir(parents=True)
    files = {PROGRAM_FILE: PROGRAM, PLAN_FILE: msgspec.json.encode(_plan(mode)).decode()}
    for name, text in {**files, MANIFEST_FILE: manifest_of(files)}.items():
        (directory / name).write_text(text)
    return load(directory)


def _plan(mode: ExecutionMode) -> Plan:
    streaming = mode is ExecutionMode.WEIGHT_STREAMING
    region = 256  # 96 bytes of first/kernel, then 64 of second/kernel at 128
    store_bytes = 2 * region
    base = 256 if streaming else store_bytes  # two slots of 128, or the store
    buffers = {"h": (BATCH, HIDDEN), "y": (BATCH, OUT), "d": (BATCH, OUT), "dh": (BATCH, HIDDEN)}
    placed, offset = [Buffer("loss", base, (1,), "float64")], base + 64
    for name, shape in buffers.items():
        placed.append(Buffer(name, offset, shape, "float32"))
        offset += 128
    draw = Initializer(InitializerKind.UNIFORM, 0.5)
    return Plan(
        compiler_version="0",
        checksum="0",
        mode=mode,
        run_mode=RunMode.TRAIN,
        precision="float32",
        batch_size=BATCH,
        replicas=1,
        minibatches_in_flight=1,
        minibatch_stride_bytes=0,
        partial_offset_bytes=0,
        visits=(
            Visit("forward_0", (0,)),
            Visit("forward_1", (1,)),
            Visit("backward_1", (1,), (1,), (1,)),
            Visit("backward_0", (0,), (0,), (0,)),
        ),
        schedule=(),
        arena_bytes=offset,
        store_in_arena=not streaming,
        store=StoreLayout(store_bytes, 0, region, ()),
        buffers=tuple(placed),
        inputs=(
            InputSpec("features", (BATCH, IN), "float32"),
            InputSpec("targets", (BATCH, OUT), "float32"),
        ),
        parameters=tuple(
            Parameter(name, name.split("/")[0], shape, "float32", 128 * i, draw)
            for i, (name, shape) in enumerate(SIZES.items())
        ),
        layers=tuple(
            Layer(name.split("/")[0], "fc", i, (name,), 0, 0, 0, 0) for i, name in enumerate(SIZES)
        ),
        groups=(
            Group(0, ("first",), 0, 96, 0 if streaming else None, 0),
            Group(1, ("second",), 128, 64, 128 if streaming else None, 128),
        ),
        loss_buffer="loss",
        loss_count=None,
        counts_padding=None,
        outputs=(Output("y", "y", Combine.SAMPLES),),
        learning_rate=Constant(RATE),
        clip_norm=None,
        floor_plan=_floor_plan(streaming),
        estimate=Estimate(1.0, 1.0, 1.0, 1.0, 1.0, ()),
    )


def _floor_plan(streaming: bool) -> tuple[Region, ...]:
    """Floor plan on a fabric of nine PEs: all for each layer in turn, or two and one."""
    whole, left, right = Rectangle(0, 0, 3, 3), Rectangle(0, 0, 2, 1), Rectangle(2, 0, 1, 1)
    places = (whole, whole) if streaming else (left, right)
    return tuple(Region(name.split("/")[0], r) for name, r in zip(SIZES, places, strict=True))


class Data:
    """`batches` finite batches of random numbers; the last has `last_rows` rows."""

    replayed = False

    def __init__(self, batches: int, last_rows: int = BATCH) -> None:
        generator = np.random.default_rng(7)
        self.all = [
            tuple(generator.standard_normal((BATCH, n)).astype("f") for n in (IN, OUT))
            for _ in range(batches)
        ]
        self.all[-1] = tuple(array[:last_rows] for array in self.all[-1])
        self._clocks = threading.local()

    @property
    def clock(self) -> StageClock:
        """Clock per streamer, which is a thread here: in a job each has its own data set."""
        if not hasattr(self._clocks, "own"):
            self._clocks.own = StageClock()
        return self._clocks.own

    def names(self, arrays: int) -> list[str]:
        """Names of a batch's arrays in messages."""
        return ["features", "targets"][:arrays]

    def deliveries(self, start: int, stride: int):
        """Yield global batches start, start + stride, …"""
        return (Delivery(batch, list) for batch in self.all[start::stride])


def expected_losses(data: Data, weights: dict[str, np.ndarray]) -> list[float]:
    """Mean loss of each step, by the formula, in float64."""
    w0, w1 = (weights[name].astype("d") for name in SIZES)
    losses = []
    for x, t in data.all:
        d = x @ w0 @ w1 - t
        losses.append(0.5 * float((d * d).sum()) / len(x))
        g1, g0 = (x @ w0).T @ d / len(x), x.T @ (d @ w1.T) / len(x)
        w0, w1 = w0 - RATE * g0, w1 - RATE * g1
    return losses
