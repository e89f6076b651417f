"""Pre-train or evaluate a BERT, written in PyTorch, by --mode.

csrun_wse --total-nodes 4 python-pt run_torch.py --mode train    on a CS system, layer pipelined
python run_torch.py --mode eval                                  in this process, on the CPU
"""

import argparse
from math import ceil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from data import IGNORED, pairs_of
from params import Input, Model, Params
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

import cerebras_torch as cbtorch

EPSILON, INITIAL, SEGMENTS = 1e-12, 0.02, 2
LABELS = ("masked_lm_labels", "next_sentence")
DEFAULT_PARAMS = Path(__file__).parent / "configs" / "params.yaml"
TRAINED = "model.pt"
OPTIONS = ("seed", "log_steps", "save_checkpoints_steps", "keep_checkpoint_max", "threads")
PARTS = ("micro_batch_size", "recompute", "num_csx")  # of a step, if a batch is split
Arrays = dict[str, Tensor]
Both = tuple[Tensor, Tensor]


class Pairs(Dataset):
    """Pairs of segments of a text with masked tokens: features and labels by name."""

    def __init__(self, options: Input, params: Params, duplicates: int = 1):
        self.pairs = pairs_of(options, params)
        self.samples = len(self.pairs.numbers(duplicates))

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Arrays, Arrays]:
        features, labels = self.pairs.batch(np.array([index]))
        return (
            {name: torch.from_numpy(rows[0]) for name, rows in features.items()},
            {name: torch.tensor(rows[0], dtype=torch.long) for name, rows in labels.items()},
        )


class Attention(nn.Module):
    """Bidirectional attention: x [B, T, D], seen [B, 1, 1, T] -> [B, T, D]."""

    def __init__(self, hidden_size: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.out = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        q, k, v = (p.view(rows, length, self.heads, -1).transpose(1, 2) for p in parts)
        dropout = self.dropout if self.training else 0.0
        x = scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)
        return self.out(x.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    """norm(x + attention(x)), then norm(x + feed-forward(x)): [B, T, D] -> [B, T, D]."""

    def __init__(self, model: Model):
        super().__init__()
        width = model.hidden_size
        self.attention = Attention(width, model.num_heads, model.attention_dropout)
        self.attention_norm = nn.LayerNorm(width, EPSILON)
        self.up = nn.Linear(width, model.intermediate_size)
        self.down = nn.Linear(model.intermediate_size, width)
        self.norm = nn.LayerNorm(width, EPSILON)
        self.dropout = nn.Dropout(model.dropout)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, seen)))
        return self.norm(x + self.dropout(self.down(gelu(self.up(x)))))


class Bert(nn.Module):
    """Logits of each token and of the second segment: [B, T] -> [B, T, V], [B, 2].

    Shapes: input_ids and segment_ids [B, T], mask [B, T] true where there is a token
    """

    def __init__(self, model: Model):
        super().__init__()
        width = model.hidden_size
        self.words = nn.Embedding(model.vocabulary, width)
        self.positions = nn.Embedding(model.max_position_embeddings, width)
        self.segments = nn.Embedding(SEGMENTS, width)
        self.norm = nn.LayerNorm(width, EPSILON)
        self.dropout = nn.Dropout(model.dropout)
        self.encoder = nn.ModuleList(Block(model) for _ in range(model.num_hidden_layers))
        self.pooler = nn.Linear(width, width)
        self.next_sentence = nn.Linear(width, 2)
        self.masked_lm = nn.Linear(width, width)
        self.masked_lm_norm = nn.LayerNorm(width, EPSILON)
        self.out = nn.Linear(width, model.vocabulary)
        self.out.weight = self.words.weight
        self.apply(initialize)

    def forward(self, input_ids: Tensor, segment_ids: Tensor, mask: Tensor) -> Both:
        positions = torch.arange(input_ids.shape[1])
        x = self.words(input_ids) + self.positions(positions) + self.segments(segment_ids)
        x = self.dropout(self.norm(x))
        seen = mask[:, None, None, :]
        for block in self.encoder:
            x = block(x, seen)
        first = self.dropout(torch.tanh(self.pooler(x[:, 0])))
        h = self.masked_lm_norm(gelu(self.masked_lm(x)))
        return self.out(h), self.next_sentence(first)


def initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


class Pretraining(nn.Module):
    """Mean loss of masked tokens plus that of the second segment, in nats."""

    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss(ignore_index=IGNORED)

    def forward(self, logits: Both, labels: Arrays) -> Tensor:
        tokens, second = logits
        masked, follows = (labels[name] for name in LABELS)
        return self.loss(tokens.flatten(0, 1), masked.flatten()) + self.loss(second, follows)


def get_train_dataloader(params: Params) -> DataLoader:
    options = params.train_input
    pairs = Pairs(options, params, options.duplicates)
    return DataLoader(pairs, options.batch_size, shuffle=True, drop_last=True)


def get_eval_dataloader(params: Params) -> DataLoader:
    return DataLoader(Pairs(params.eval_input, params), params.eval_input.batch_size)


def get_optimizer(model: nn.Module, params: Params) -> torch.optim.Optimizer:
    """Create AdamW, without weight decay of vectors (biases and norms)."""
    options, parameters = params.optimizer, list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.learning_rate.initial_learning_rate)


def get_schedule(optimizer: torch.optim.Optimizer, params: Params) -> LambdaLR:
    """Create the schedule of the params file: linear warm-up, then linear decay."""
    rates = params.optimizer.learning_rate
    return LambdaLR(optimizer, lambda step: rates.at(step) / rates.initial_learning_rate)


def train(params: Params, model_dir: Path, max_steps: int, options: dict[str, Any]) -> None:
    config = params.runconfig
    torch.manual_seed(config.seed)
    of_run = {key: getattr(config, key) for key in (*OPTIONS, *PARTS)}
    cbtorch.initialize(model_dir=model_dir, **of_run, **options)
    model = cbtorch.module(Bert(params.model))
    optimizer = get_optimizer(model, params)
    schedule = get_schedule(optimizer, params)
    criterion = Pretraining()
    train_dataloader = cbtorch.dataloader(get_train_dataloader(params))
    batches = len(train_dataloader)
    with cbtorch.Session(model, optimizer, criterion, mode="train"):
        for epoch in range(ceil(max_steps / batches)):
            for step, (features, labels) in enumerate(train_dataloader, epoch * batches + 1):
                optimizer.zero_grad()
                loss = criterion(model(**features), labels)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), params.optimizer.clip_norm)
                optimizer.step()
                schedule.step()
                if step % config.log_steps == 0:
                    print(f"step {step}: loss {loss.item():.6g}")
                if step == max_steps:
                    break
    cbtorch.save(model.state_dict(), model_dir / TRAINED)


def evaluate(params: Params, model_dir: Path, max_steps: int, options: dict[str, Any]) -> None:
    cbtorch.initialize(model_dir=model_dir, **options)
    model = Bert(params.model)
    model.load_state_dict(torch.load(model_dir / TRAINED))
    model = cbtorch.module(model.eval())
    criterion = Pretraining()
    eval_dataloader = cbtorch.dataloader(get_eval_dataloader(params))
    total, right, hidden, samples = 0.0, 0, 0, 0
    with cbtorch.Session(model, criterion=criterion, mode="eval"), torch.no_grad():
        for step, (features, labels) in enumerate(eval_dataloader, 1):
            logits = model(**features)
            loss = criterion(logits, labels)
            masked = labels["masked_lm_labels"]
            hits = (logits[0].argmax(-1) == masked).sum()
            total += loss.item() * len(masked)
            right += hits.item()
            hidden += (masked != IGNORED).sum().item()
            samples += len(masked)
            if step == params.runconfig.eval_steps:
                break
        print(f"loss {total / samples:.6g}, masked_accuracy {right / hidden:.6g}")


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
    params = msgspec.yaml.decode(args.params.read_text(), type=Params)
    run = train if args.mode == "train" else evaluate
    run(params, args.model_dir, args.max_steps or params.runconfig.max_steps, options)


if __name__ == "__main__":
    main()
