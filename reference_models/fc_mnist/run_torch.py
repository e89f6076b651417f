"""Train or evaluate fc_mnist, written in PyTorch, by --mode.

csrun_wse --total-nodes 4 python-pt run_torch.py --mode train    on a CS system, layer pipelined
python run_torch.py --mode eval                                  in this process, on the CPU
"""

import argparse
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import torch
import yaml
from data import SHIFTS, read_digits
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.data import DataLoader, Dataset

import cerebras_torch as cbtorch

CLASSES, SIDE = 10, 28
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
DEFAULT_PARAMS = Path(__file__).parent / "configs" / "params.yaml"
TRAINED = "model.pt"
OPTIONS = ("seed", "log_steps", "save_checkpoints_steps", "keep_checkpoint_max")
PARTS = ("micro_batch_size", "recompute", "num_csx")  # of a step, if a batch is split


class Digits(Dataset):
    """Images float32 [28, 28] in 0..1 with labels, each image with each shift."""

    def __init__(self, data_dir: str, prefix: str, shifts=SHIFTS[:1]):
        images, labels = read_digits(data_dir, prefix)
        self.images = pad(torch.tensor(images), (1, 1, 1, 1))  # room to move by a pixel
        self.labels = torch.tensor(labels, dtype=torch.long)
        self.shifts = shifts

    def __len__(self) -> int:
        return len(self.shifts) * len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        shift, sample = divmod(index, len(self.labels))
        top, left = (1 - by for by in self.shifts[shift])
        return self.images[sample, top : top + SIDE, left : left + SIDE] / 255, self.labels[sample]


class Network(nn.Module):
    """Fully connected layers: images [B, 28, 28] -> logits [B, 10]."""

    def __init__(self, hidden_sizes: list[int]):
        super().__init__()
        sizes = [SIDE * SIDE, *hidden_sizes, CLASSES]
        self.layers = nn.ModuleList(nn.Linear(*ends) for ends in pairwise(sizes))
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(1)
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


def get_train_dataloader(options: dict[str, Any]) -> DataLoader:
    shifts = SHIFTS if options["shift_images"] else SHIFTS[:1]
    digits = Digits(options["data_dir"], "train", shifts)
    return DataLoader(digits, options["batch_size"], shuffle=True, drop_last=True)


def get_eval_dataloader(options: dict[str, Any]) -> DataLoader:
    return DataLoader(Digits(options["data_dir"], "t10k"), options["batch_size"])


def get_optimizer(model: nn.Module, options: dict[str, Any]) -> torch.optim.Optimizer:
    kind, rate = OPTIMIZERS[options["optimizer_type"]], options["learning_rate"]
    rest = {key: options[key] for key in options.keys() - {"optimizer_type", "learning_rate"}}
    return kind(model.parameters(), lr=rate, **rest)


def train(params: dict[str, Any], model_dir: Path, options: dict[str, Any]) -> None:
    config = params["runconfig"]
    torch.manual_seed(config["seed"])
    of_run = {key: config[key] for key in (*OPTIONS, *PARTS) if key in config}
    cbtorch.initialize(model_dir=model_dir, **of_run, **options)
    model = cbtorch.module(Network(params["model"]["hidden_sizes"]))
    optimizer = get_optimizer(model, params["optimizer"])
    criterion = nn.CrossEntropyLoss()
    train_dataloader = cbtorch.dataloader(get_train_dataloader(params["train_input"]))
    max_steps, batches = config["max_steps"], len(train_dataloader)
    with cbtorch.Session(model, optimizer, criterion, mode="train"):
        for epoch in range(ceil(max_steps / batches)):
            for step, (images, labels) in enumerate(train_dataloader, epoch * batches + 1):
                optimizer.zero_grad()
                loss = criterion(model(images), labels)
                loss.backward()
                optimizer.step()
                if step % config["log_steps"] == 0:
                    print(f"step {step}: loss {loss.item():.6g}")
                if step == max_steps:
                    break
    cbtorch.save(model.state_dict(), model_dir / TRAINED)


def evaluate(params: dict[str, Any], model_dir: Path, options: dict[str, Any]) -> None:
    cbtorch.initialize(model_dir=model_dir, **options)
    model = Network(params["model"]["hidden_sizes"])
    model.load_state_dict(torch.load(model_dir / TRAINED))
    model = cbtorch.module(model.eval())
    criterion = nn.CrossEntropyLoss()
    eval_dataloader = cbtorch.dataloader(get_eval_dataloader(params["eval_input"]))
    total_loss, correct, samples = 0.0, 0, 0
    with cbtorch.Session(model, criterion=criterion, mode="eval"), torch.no_grad():
        for images, labels in eval_dataloader:
            logits = model(images)
            loss = criterion(logits, labels)
            hits = (logits.argmax(1) == labels).sum()
            total_loss += loss.item() * len(labels)
            correct += hits.item()
            samples += len(labels)
        print(f"loss {total_loss / samples:.6g}, accuracy {correct / samples:.6g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-m", "--mode", choices=("train", "eval"), default="train")
    parser.add_argument("-p", "--params", type=Path, default=DEFAULT_PARAMS)
    parser.add_argument("-o", "--model_dir", type=Path, default=Path("model_dir_torch"))
    parser.add_argument("--max_steps", type=int)
    parser.add_argument("--cs_ip", help="name or address of the CS system")
    parser.add_argument("--compile_only", action="store_true", help="compile without running")
    parser.add_argument(
        "--validate_only", action="store_true", help="match kernels without compiling"
    )
    args = parser.parse_args()
    options = {key: getattr(args, key) for key in ("cs_ip", "compile_only", "validate_only")}
    params = yaml.safe_load(args.params.read_text())
    if args.max_steps is not None:
        params["runconfig"]["max_steps"] = args.max_steps
    run = train if args.mode == "train" else evaluate
    run(params, args.model_dir, options)


if __name__ == "__main__":
    main()
