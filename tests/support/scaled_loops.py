"""A script with a loss scaler, in the forms of csrun's releases and of PyTorch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cerebras_torch as cbtorch

STEPS = 6  # of a pass
LARGE = 2.0**28  # a scale with which the first steps overflow in float16
LONGEST = 0.3  # that gradients are clipped to


class Script:
    """A classifier of two layers, its data, and a loop with a scaler."""

    def __init__(self, scaler=None):
        torch.manual_seed(1)
        layers = nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
        x = torch.randn(16 * STEPS, 12)
        y = (x[:, :4] + 0.1 * torch.randn(16 * STEPS, 4)).argmax(1)
        self.loader = DataLoader(TensorDataset(x, y), 16)
        self.scaler = scaler
        self.scales, self.losses = [], []

    def train(self, folder, epochs=4, step=None, precision="mixed_float16", **options):
        """Train the model; its weights."""
        cbtorch.initialize(model_dir=folder, log_steps=1, precision=precision, **options)
        self.model = cbtorch.module(self.model)
        loader, step = cbtorch.dataloader(self.loader), step or self.later_step
        self.scaler = self.scaler if hasattr(self.scaler, "scale") else self.scaler()
        with cbtorch.Session(self.model, self.optimizer, nn.CrossEntropyLoss(), mode="train"):
            for _ in range(epochs):
                for x, y in loader:
                    self.optimizer.zero_grad()
                    step(x, y)
        return [p.detach().clone() for p in self.model.parameters()]

    def loss(self, x, y):
        """Return the loss of a batch, which is noted in `losses`."""
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.losses.append(loss.detach())
        return loss

    def first_step(self, x, y):
        """The form of the first releases."""
        self.scaler(self.loss(x, y)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), LONGEST)
        self.optimizer.step()

    def later_step(self, x, y):
        """The form of later releases and of PyTorch."""
        self.scaler.scale(self.loss(x, y)).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), LONGEST)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def reading_step(self, x, y):
        """A later step whose scale is read."""
        self.later_step(x, y)
        self.scales.append(self.scaler.get_scale())


def equal(ours, theirs):
    """True if all tensors have equal bits."""
    return all(map(torch.equal, ours, theirs))
