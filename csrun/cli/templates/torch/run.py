"""A PyTorch training loop on generated points, then an evaluation that prints the accuracy."""

import argparse

import cerebras_torch as cbtorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_loader(samples, seed):
    """Points in 8 dimensions, and whether each is within a radius of 2.7."""
    points = torch.randn(samples, 8, generator=torch.Generator().manual_seed(seed))
    inside = (points.norm(dim=1) < 2.7).long()
    return DataLoader(TensorDataset(points, inside), batch_size=64, drop_last=True)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--cs_ip", help="the CS system, by name or address")
parser.add_argument("--epochs", type=int, default=10)
args = parser.parse_args()

torch.manual_seed(1)
cbtorch.initialize(cs_ip=args.cs_ip, model_dir="model_dir")
model = cbtorch.module(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)))
train_dataloader = cbtorch.dataloader(make_loader(4096, seed=1))
eval_dataloader = cbtorch.dataloader(make_loader(1024, seed=2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()

with cbtorch.Session(model, optimizer, criterion, mode="train"):
    for epoch in range(args.epochs):
        for inputs, targets in train_dataloader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")

    model.eval()
    correct = samples = 0
    with torch.no_grad():
        for inputs, targets in eval_dataloader:
            correct += (model(inputs).argmax(1) == targets).sum().item()
            samples += len(targets)
    print(f"accuracy = {correct / samples:.4f}")
cbtorch.save(model.state_dict(), "model.pt")
