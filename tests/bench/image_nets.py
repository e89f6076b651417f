"""Convolution networks, each written once: in csrun's layers and in PyTorch's.

A training step takes one batch in memory, computes the loss of ten classes and all
gradients, and updates by SGD with momentum. csrun's compiled program runs in this process, without
a runtime around it. Both sides begin with the same weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from model_steps import Step, program_step

CLASSES = 10
RATE, MOMENTUM = 0.01, 0.9


@dataclass(frozen=True)
class Conv:
    """A convolution, its windows padded by half of their size unless `padding` says otherwise."""

    maps: int
    size: int = 3
    stride: int = 1
    groups: int = 1
    bias: bool = False
    padding: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Options with the same names on both sides."""
        padding = self.size // 2 if self.padding is None else self.padding
        return {"stride": self.stride, "padding": padding, "groups": self.groups}


@dataclass(frozen=True)
class Dense:
    """A dense layer."""

    units: int


@dataclass(frozen=True)
class Drop:
    """Dropout."""

    rate: float


@dataclass(frozen=True)
class Residual:
    """relu(layers + shortcut); without layers the shortcut is the input."""

    layers: tuple[Any, ...]
    shortcut: tuple[Any, ...] = ()


#: Layers without a size.
NORM, RELU, RELU6, POOL, AVERAGE, FLATTEN = "norm", "relu", "relu6", "pool", "average", "flatten"


@dataclass(frozen=True)
class Network:
    """Layers over images [B, C, H, H]."""

    name: str
    shape: tuple[int, int, int]
    layers: tuple[Any, ...]

    def drop_nothing(self) -> "Network":
        """The network without dropout."""
        layers = tuple(layer for layer in self.layers if not isinstance(layer, Drop))
        return Network(self.name, self.shape, layers)


def _blocks(filters: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(layer for n in filters for layer in (Conv(n), NORM, POOL, RELU))


def _separable(channels: int, maps: int, stride: int) -> tuple[Any, ...]:
    by_channel = Conv(channels, stride=stride, groups=channels)
    return by_channel, NORM, RELU6, Conv(maps, size=1), NORM, RELU6


def _residual(channels: int, maps: int, stride: int) -> Residual:
    layers = Conv(maps, stride=stride), NORM, RELU, Conv(maps), NORM
    if stride == 1 and channels == maps:
        return Residual(layers)
    return Residual(layers, (Conv(maps, size=1, stride=stride), NORM))


MNIST = (
    *(Conv(32, bias=True, padding=0), RELU, Conv(64, bias=True, padding=0), RELU, POOL),
    *(Drop(0.25), FLATTEN, Dense(128), RELU, Drop(0.5), Dense(CLASSES)),
)
MOBILE = ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2))
RESNET = (
    *((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)),
    *((128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)),
)
NETWORKS = (
    Network(
        "cnn_mnist, batch 64",
        (64, 1, 28),
        (*_blocks((16, 32)), FLATTEN, Dense(64), RELU, Dense(CLASSES)),
    ),
    Network("examples/mnist, batch 64", (64, 1, 28), MNIST),
    Network(
        "MobileNet's blocks, 32 x 32, batch 32",
        (32, 3, 32),
        (
            *(Conv(32), NORM, RELU6),
            *(layer for sizes in MOBILE for layer in _separable(*sizes)),
            *(AVERAGE, FLATTEN, Dense(CLASSES)),
        ),
    ),
    Network(
        "ResNet-18, 32 x 32, batch 32",
        (32, 3, 32),
        (
            *(Conv(64), NORM, RELU),
            *(_residual(*sizes) for sizes in RESNET),
            *(AVERAGE, FLATTEN, Dense(CLASSES)),
        ),
    ),
)


class Training:
    """A network compiled, in both forms of kernels, and in PyTorch."""

    def __init__(self, network: Network, root: Path) -> None:
        import torch
        from support.programs import options_of

        from csrun.compiler import compile_model
        from csrun.executable import machine_code

        samples, channels, size = network.shape
        random = np.random.default_rng(1)
        images = random.standard_normal((samples, channels, size, size)).astype("float32")
        self.batch = images, random.integers(0, CLASSES, samples).astype("int32")
        torch.manual_seed(1)
        self.peer = torch.nn.Sequential(*_torch_layers(torch, network.layers, channels, size)[0])
        forms = ["llvm" if machine_code.is_supported() else "numpy", "numpy"]
        self.executable, self.by_numpy = (
            compile_model(_module(network), root / name, options_of(kernels=form)).executable
            for name, form in zip(("own", "numpy"), forms, strict=True)
        )
        self.weights = _weights(self.executable.plan, self.peer)

    def ours(self, threads: int, by_numpy: bool = False) -> Step:
        """One step of the compiled program."""
        executable = self.by_numpy if by_numpy else self.executable
        return program_step(executable, self.weights, self.batch, threads)

    def theirs(self, compiled: bool = False) -> Step:
        """One step in PyTorch."""
        import torch

        peer = torch.compile(self.peer) if compiled else self.peer
        images, labels = (torch.from_numpy(a) for a in self.batch)
        optimizer = torch.optim.SGD(self.peer.parameters(), RATE, MOMENTUM)
        wanted = labels.long()

        def run() -> None:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(peer(images), wanted)
            loss.backward()
            optimizer.step()

        return run


def _weights(plan: Any, peer: Any) -> dict[str, np.ndarray]:
    """PyTorch's first weights by csrun's names: both sides make them in the order of the layers."""
    values = [value.detach().numpy().copy() for value in peer.parameters()]
    trained = [p for p in plan.parameters if "running" not in p.name]
    found = {
        p.name: np.ascontiguousarray(value.T if "dense" in p.name else value)
        for p, value in zip(trained, values, strict=True)
    }
    for p in plan.parameters:
        assert p.name not in found or found[p.name].shape == p.shape, p.name
        found.setdefault(p.name, np.full(p.shape, p.name.endswith("running_var"), "float32"))
    return found


def _module(network: Network) -> Any:
    """The traced training step."""
    from csrun import nn
    from csrun.base.mode import RunMode
    from csrun.nn.tracer import Tracer

    samples, channels, size = network.shape
    with Tracer("float32") as tracer:
        images = tracer.input("images", (samples, channels, size, size), "float32")
        labels = tracer.input("labels", (samples,), "int32")
        loss = nn.softmax_cross_entropy(_applied(nn, network.layers, images), labels)
        train_op = nn.SGD(RATE, MOMENTUM).minimize(loss)
        return tracer.finish(RunMode.TRAIN, loss, train_op, [])


def _applied(nn: Any, layers: tuple[Any, ...], x: Any) -> Any:
    for layer in layers:
        match layer:
            case Conv():
                x = nn.Conv2D(layer.maps, layer.size, use_bias=layer.bias, **layer.options)(x)
            case Dense():
                x = nn.Dense(layer.units)(x)
            case Drop():
                x = nn.Dropout(layer.rate)(x)
            case Residual():
                x = nn.relu(_applied(nn, layer.layers, x) + _applied(nn, layer.shortcut, x))
            case _:
                x = _plain(nn, layer, x.shape[-1])(x)
    return x


def _plain(nn: Any, layer: str, size: int) -> Callable[[Any], Any]:
    return {
        NORM: lambda: nn.BatchNorm(momentum=0.1),
        RELU: lambda: nn.relu,
        RELU6: lambda: nn.relu6,
        POOL: lambda: nn.MaxPool(2),
        AVERAGE: lambda: nn.AveragePool(size),
        FLATTEN: lambda: nn.flatten,
    }[layer]()


def _torch_layers(
    torch: Any, layers: tuple[Any, ...], channels: int, size: int
) -> tuple[list[Any], int, int]:
    """The layers in PyTorch; channels and size of what comes out."""
    found: list[Any] = []
    for layer in layers:
        match layer:
            case Conv():
                own = torch.nn.Conv2d(
                    channels, layer.maps, layer.size, bias=layer.bias, **layer.options
                )
                channels = layer.maps
                padding = layer.options["padding"]
                size = (size + 2 * padding - layer.size) // layer.stride + 1
            case Dense():
                own, channels = torch.nn.Linear(channels, layer.units), layer.units
            case Drop():
                own = torch.nn.Dropout(layer.rate)
            case Residual():
                main, maps, after = _torch_layers(torch, layer.layers, channels, size)
                short, _, _ = _torch_layers(torch, layer.shortcut, channels, size)
                own, channels, size = _torch_residual(torch, main, short), maps, after
            case "pool":
                own, size = torch.nn.MaxPool2d(2), size // 2
            case "average":
                own, size = torch.nn.AvgPool2d(size), 1
            case "flatten":
                own, channels = torch.nn.Flatten(), channels * size * size
            case _:
                kinds = {NORM: torch.nn.BatchNorm2d, RELU: torch.nn.ReLU, RELU6: torch.nn.ReLU6}
                own = kinds[layer](*([channels] if layer == NORM else []))
        found.append(own)
    return found, channels, size


def _torch_residual(torch: Any, main: list[Any], short: list[Any]) -> Any:
    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.main = torch.nn.Sequential(*main)
            self.short = torch.nn.Sequential(*short)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.main(x) + self.short(x))

    return Block()
