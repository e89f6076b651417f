"""PyTorch training with an evaluation per epoch, early stopping, and the best weights saved.

python early_stopping.py one        one Session around both loops
python early_stopping.py several    a Session for each training and each evaluation of an epoch

`phase` has the loop's current phase; results are history.json, best.pt and final.pt.
"""

import argparse
import json
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cerebras_torch as cbtorch

EPOCHS, PATIENCE = 60, 8


def points(samples: int, seed: int) -> TensorDataset:
    """Points in 8 dimensions, labelled by a radius, one label in ten flipped."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 8, generator=draw)
    y = (x.norm(dim=1) < 2.7).long()
    return TensorDataset(x, y ^ (torch.rand(samples, generator=draw) < 0.1))


def tell(epoch: int, phase: str) -> None:
    if cbtorch.env().is_chief:
        Path("phase").write_text(f"{epoch} {phase}")


def train_epoch() -> float:
    model.train()
    total = 0.0
    for inputs, targets in train_dataloader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.detach()
    return total.item() / len(train_dataloader)


@torch.no_grad()
def evaluate() -> tuple[float, float]:
    model.eval()
    total, hits = 0.0, 0
    for inputs, targets in eval_dataloader:
        logits = model(inputs)
        total += criterion(logits, targets).item() * len(targets)
        hits += (logits.argmax(1) == targets).sum().item()
    samples = len(eval_dataloader.dataset)
    return total / samples, hits / samples


parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("sessions", choices=("one", "several"))
is_one = parser.parse_args().sessions == "one"

torch.manual_seed(1)
cbtorch.initialize(model_dir="model_dir", save_checkpoints_steps=7, keep_checkpoint_max=2)
layers = nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
model = cbtorch.module(nn.Sequential(*layers))
train_dataloader = cbtorch.dataloader(DataLoader(points(300, seed=1), 32, shuffle=True))
eval_dataloader = cbtorch.dataloader(DataLoader(points(200, seed=2), 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
criterion = nn.CrossEntropyLoss()


def session(mode: str, is_outer: bool):
    """Session around all epochs or, for several, around one loop."""
    if is_outer != is_one:
        return nullcontext()
    trained = optimizer if mode == "train" else None
    return cbtorch.Session(model, trained, criterion, mode=mode)


history, best, waited = [], float("inf"), 0
with session("train", is_outer=True) as whole:
    for epoch in range(EPOCHS):
        tell(epoch, "training")
        with session("train", is_outer=False) as training:
            train_loss = train_epoch()
        tell(epoch, "evaluation")
        with session("eval", is_outer=False):
            eval_loss, accuracy = evaluate()
        tell(epoch, "end")
        scheduler.step(eval_loss)
        rate = optimizer.param_groups[0]["lr"]
        history.append([train_loss, eval_loss, accuracy, rate])
        waited += 1
        if eval_loss < best:
            best, waited = eval_loss, 0
            if not (whole or training).is_replayed:  # then the file is there
                cbtorch.save(model.state_dict(), "best.pt")
        cbtorch.master_print(f"epoch {epoch}: {history[-1]}")
        if waited == PATIENCE:
            break
cbtorch.save([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()], "final.pt")
if cbtorch.env().is_chief:
    Path("history.json").write_text(json.dumps(history))
