"""Train or evaluate a GPT, written in PyTorch, by --mode.

csrun_wse --total-nodes 4 python-pt run_torch.py --mode train    on a CS system, layer pipelined
python run_torch.py --mode eval                                  in this process, on the CPU
"""

import argparse
from math import ceil, exp, sqrt
from pathlib import Path
from typing import Any

import torch
import yaml
from data import found
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

import cerebras_torch as cbtorch
from csrun.data.formats import Tokens

EPSILON, INITIAL = 1e-5, 0.02
BETAS = (0.9, 0.999)
DEFAULT_PARAMS = Path(__file__).parent / "configs" / "params.yaml"
TRAINED = "model.pt"
OPTIONS = ("seed", "log_steps", "save_checkpoints_steps", "keep_checkpoint_max", "threads")
PARTS = ("micro_batch_size", "recompute", "num_csx")  # of a step, if a batch is split


class Windows(Dataset):
    """Consecutive windows of a text: tokens [T] and next tokens [T]."""

    def __init__(self, file: str, model: dict[str, Any]):
        form = Tokens(model["sequence_length"], vocabulary=model["vocabulary"])
        self.tokens, self.following = form.arrays(found(file))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rows = self.tokens[index], self.following[index]
        tokens, following = (torch.tensor(row, dtype=torch.long) for row in rows)
        return tokens, following


class Attention(nn.Module):
    """Causal attention of several heads: [B, T, D] -> [B, T, D]."""

    def __init__(self, hidden_size: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.out = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        q, k, v = (p.view(rows, length, self.heads, -1).transpose(1, 2) for p in parts)
        dropout = self.dropout if self.training else 0.0
        x = scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(x.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)): [B, T, D] -> [B, T, D]."""

    def __init__(self, model: dict[str, Any]):
        super().__init__()
        width = model["hidden_size"]
        self.ln_1 = nn.LayerNorm(width, EPSILON)
        self.attn = Attention(width, model["num_heads"], model.get("attention_dropout", 0.0))
        self.ln_2 = nn.LayerNorm(width, EPSILON)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(model.get("dropout", 0.0))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attn(self.ln_1(x)))
        h = gelu(self.up(self.ln_2(x)), approximate="tanh")
        return x + self.dropout(self.down(h))


class Gpt(nn.Module):
    """Logits of the token that follows each: [B, T] -> [B, T, V]. The output layer is tied."""

    def __init__(self, model: dict[str, Any]):
        super().__init__()
        width, layers = model["hidden_size"], model["num_hidden_layers"]
        self.wte = nn.Embedding(model["vocabulary"], width)
        self.wpe = nn.Embedding(model["max_position_embeddings"], width)
        self.dropout = nn.Dropout(model.get("dropout", 0.0))
        self.h = nn.ModuleList(Block(model) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, EPSILON)
        self.head = nn.Linear(width, model["vocabulary"], bias=False)
        self.head.weight = self.wte.weight
        self.apply(initialize)
        for block in self.h:
            for layer in (
                block.attn.out,
                block.down,
            ):  # outputs that are added to the residual stream
                nn.init.normal_(layer.weight, std=INITIAL / sqrt(2 * layers))

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1])
        x = self.dropout(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


def initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class NextToken(nn.Module):
    """Mean loss per token, in nats: logits [B, T, V], following [B, T]."""

    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss()

    def forward(self, logits: Tensor, following: Tensor) -> Tensor:
        return self.loss(logits.view(-1, logits.shape[-1]), following.view(-1))


def get_train_dataloader(params: dict[str, Any]) -> DataLoader:
    options = params["train_input"]
    windows = Windows(options["file"], params["model"])
    return DataLoader(windows, options["batch_size"], shuffle=True, drop_last=True)


def get_eval_dataloader(params: dict[str, Any]) -> DataLoader:
    options = params["eval_input"]
    return DataLoader(Windows(options["file"], params["model"]), options["batch_size"])


def get_optimizer(model: nn.Module, options: dict[str, Any]) -> torch.optim.Optimizer:
    """Create AdamW, without weight decay of vectors (biases and norms)."""
    rate = options["learning_rate"]["initial_learning_rate"]
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": options["weight_decay"]},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=BETAS)


def get_schedule(optimizer: torch.optim.Optimizer, options: dict[str, Any]) -> LambdaLR:
    """Create the schedule: linear warm-up, if any, then linear decay to the last rate."""
    rates = options["learning_rate"]
    warmup, steps = rates.get("warmup_steps", 0), rates["steps"]
    last = rates["end_learning_rate"] / rates["initial_learning_rate"]

    def share(step: int) -> float:
        if step < warmup:
            return step / warmup
        return 1 - (1 - last) * min((step - warmup) / steps, 1.0)

    return LambdaLR(optimizer, share)


def train(params: dict[str, Any], model_dir: Path, options: dict[str, Any]) -> None:
    config = params["runconfig"]
    torch.manual_seed(config["seed"])
    of_run = {key: config[key] for key in (*OPTIONS, *PARTS) if key in config}
    cbtorch.initialize(model_dir=model_dir, **of_run, **options)
    model = cbtorch.module(Gpt(params["model"]))
    optimizer = get_optimizer(model, params["optimizer"])
    schedule = get_schedule(optimizer, params["optimizer"])
    criterion = NextToken()
    train_dataloader = cbtorch.dataloader(get_train_dataloader(params))
    max_steps, batches = config["max_steps"], len(train_dataloader)
    with cbtorch.Session(model, optimizer, criterion, mode="train"):
        for epoch in range(ceil(max_steps / batches)):
            for step, (tokens, following) in enumerate(train_dataloader, epoch * batches + 1):
                optimizer.zero_grad()
                loss = criterion(model(tokens), following)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), params["optimizer"]["clip_norm"])
                optimizer.step()
                schedule.step()
                if step % config["log_steps"] == 0:
                    print(f"step {step}: loss {loss.item():.6g}")
                if step == max_steps:
                    break
    cbtorch.save(model.state_dict(), model_dir / TRAINED)


def evaluate(params: dict[str, Any], model_dir: Path, options: dict[str, Any]) -> None:
    cbtorch.initialize(model_dir=model_dir, **options)
    model = Gpt(params["model"])
    model.load_state_dict(torch.load(model_dir / TRAINED))
    model = cbtorch.module(model.eval())
    criterion = NextToken()
    eval_dataloader = cbtorch.dataloader(get_eval_dataloader(params))
    total, samples = 0.0, 0
    with cbtorch.Session(model, criterion=criterion, mode="eval"), torch.no_grad():
        for step, (tokens, following) in enumerate(eval_dataloader, 1):
            loss = criterion(model(tokens), following)
            total += loss.item() * len(tokens)
            samples += len(tokens)
            if step == params["runconfig"]["eval_steps"]:
                break
        print(f"loss {total / samples:.6g}, perplexity {exp(total / samples):.6g}")


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
