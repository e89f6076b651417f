"""Types of floats, and scaled losses."""

import torch
from support.refusals import refused, refused_loop
from support.torch_loops import Kit
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Float32(Kit):
    """A kit whose model and batches are of float32."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.model.float()
        x, y = self.train.dataset.tensors
        self.train = DataLoader(TensorDataset(x.float(), y), 8)


class Scaled(Float32):
    """A kit with a loss scaler."""

    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def backward(self, x, y):
        self.optimizer.zero_grad()
        self.scaler.scale(self.criterion(self.model(x), y)).backward()  # here


@refused_loop("autocast in a float32 run", kit=Float32)
def autocast(kit):
    for x, y in kit.train:
        with torch.autocast("cpu", torch.bfloat16):  # here
            kit.update(kit.criterion(kit.model(x), y))


@refused("a model or buffer in 16 bits")
def model_of_16_bits(folder):
    kit = Float32()
    kit.model.bfloat16()
    with kit.session(folder):
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            kit.criterion(kit.model(x.bfloat16()), y).backward()
            kit.optimizer.step()  # here


@refused_loop(
    "scaled gradients that are edited otherwise than by clipping",
    kit=Scaled,
    precision="mixed_float16",
)
def edited_scaled_gradients(kit):
    for x, y in kit.train:
        kit.backward(x, y)
        kit.model[0].weight.grad.mul_(0.5)
        kit.scaler.step(kit.optimizer)  # here
        kit.scaler.update()


@refused_loop("a loss that is scaled in some steps only", kit=Scaled, precision="mixed_float16")
def scaled_in_some_steps(kit):
    for step, (x, y) in enumerate(kit.train):
        if step:
            kit.optimizer.zero_grad()
            kit.criterion(kit.model(x), y).backward()  # here
            kit.optimizer.step()
        else:
            kit.backward(x, y)
            kit.scaler.step(kit.optimizer)
            kit.scaler.update()


@refused("the scale or options of a GradScaler, set between Sessions")
def scale_between_sessions(folder):
    kit = Scaled()
    session = kit.session(folder, precision="mixed_float16")
    for _ in range(2):
        with session:
            for x, y in kit.train:
                kit.backward(x, y)
                kit.scaler.step(kit.optimizer)
                kit.scaler.update()
        kit.scaler.set_growth_interval(5)


@refused_loop("a product of float32 and float64")
def model_of_float32(kit):
    kit.model.float()
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        kit.criterion(kit.model(x), y).backward()  # here
        kit.optimizer.step()


class Complex(nn.Module):
    """A linear layer with complex weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4, dtype=torch.complex128))

    def forward(self, x):
        return (x.to(torch.complex128) @ self.weight).abs()  # here


@refused("complex weights and batches")
def complex_weights(folder):
    kit = Kit()
    kit.model = Complex()
    kit.optimizer = torch.optim.SGD(kit.model.parameters(), 0.1)
    with kit.session(folder):
        for x, y in kit.train:
            kit.update(kit.criterion(kit.model(x), y))


@refused("complex weights and batches")
def complex_batches(folder):
    kit = Kit()
    x, y = kit.train.dataset.tensors
    kit.train = DataLoader(TensorDataset(torch.complex(x, x), y), 8)
    with kit.session(folder):
        for x, y in kit.train:  # here
            kit.update(kit.criterion(kit.model(x.real), y))


@refused_loop("unsigned integers of more than 8 bits, such as `mask.to(torch.uint16)`")
def words_of_a_mask(kit):
    for x, y in kit.train:
        out = kit.model(x)
        kit.update(kit.criterion(out * (out > 0).to(torch.uint16), y))  # here


@refused_loop("`.to(device)`")
def to_a_device(kit):
    for x, y in kit.train:
        kit.update(kit.criterion(kit.model(x.to("meta")), y))  # here
