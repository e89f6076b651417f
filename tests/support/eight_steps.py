"""A training of eight steps, for tests that read or write weights between steps."""

import torch
from support.torch_loops import Kit
from torch.utils.data import DataLoader, TensorDataset


class Script(Kit):
    """Training of eight steps, with a checkpoint after the fifth."""

    def __init__(self):
        super().__init__()
        x, y = torch.randn(64, 6, dtype=torch.float64), torch.randint(4, (64,))
        self.train = DataLoader(TensorDataset(x, y), 8)

    def session(self, folder):
        return super().session(folder, save_checkpoints_steps=5)

    def loop(self, after):
        """Train for one pass; return the results of `after` for each step and its logits."""
        found = []
        for step, (x, y) in enumerate(self.train, 1):
            self.optimizer.zero_grad()
            logits = self.model(x)
            self.criterion(logits, y).backward()
            self.optimizer.step()
            found.append(after(step, logits))
        return found


def norms(script):
    """Return the norm of each parameter."""
    return [p.norm().item() for p in script.model.parameters()]
