"""A script in the form of the Model Zoo's: a params file, a model class, a runner, `.mdl` files.

usage: zoo_script.py --mode train|eval --params FILE --model_dir DIR [--cs_ip IP] [--compile_only]
[--checkpoint_path FILE]; without --cs_ip and --compile_only it runs in plain PyTorch
"""

import argparse
import os
import random

import torch
import yaml
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

parser = argparse.ArgumentParser()
for name in ("mode", "params", "model_dir", "cs_ip", "checkpoint_path"):
    parser.add_argument(f"--{name}")
parser.add_argument("--compile_only", action="store_true")
args = parser.parse_args()
ON_CS = bool(args.cs_ip or args.compile_only)
if ON_CS:
    import cerebras.framework.torch as cbtorch
    from cerebras.framework.torch.core import cb_model as cm
    from cerebras.framework.torch.core import modes


class Sentences(torch.utils.data.IterableDataset):
    """Ready batches of tokens in an order that is drawn; its length counts samples."""

    def __init__(self, params):
        self.params = params
        self.rank, self.tasks = (
            (cm.get_streaming_rank(), cm.num_streamers()) if ON_CS and cm.is_streamer() else (0, 1)
        )

    def __len__(self):
        return self.params["samples"]

    def __iter__(self):
        samples, rows = range(self.params["samples"])[self.rank :: self.tasks], []
        order = random.Random(self.params["shuffle_seed"])
        for number in order.sample(samples, len(samples)):
            generator = torch.Generator().manual_seed(number)
            row = torch.randint(
                self.params["vocab_size"], (self.params["length"],), generator=generator
            )
            rows.append(row.int())
            if len(rows) == self.params["batch_size"]:
                ids = torch.stack(rows)
                yield {"input_ids": ids, "labels": ids.roll(-1, 1), "mask": (ids > 3).int()}
                rows = []


class Language(nn.Module):
    """Tied embeddings around an encoder layer; the loss is a weighted mean, in 16 bits."""

    def __init__(self, params):
        super().__init__()
        width = params["hidden_size"]
        self.table = nn.Embedding(params["vocab_size"], width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, "gelu", batch_first=True)
        self.head = nn.Linear(width, params["vocab_size"], bias=False)
        self.tie_weights()

    def tie_weights(self):
        """Share the table."""
        self.head.weight = self.table.weight

    def forward(self, input_ids, labels, weights):
        logits = self.head(self.layer(self.table(input_ids)))
        each = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten().long(), reduction="none"
        )
        loss = (each * weights.flatten()).sum() / weights.numel()
        return (loss.half() if ON_CS else loss), logits


def rates(optimizer, schedules):
    """The wafer's schedules in order, or a function of the step that is the same."""
    if ON_CS:
        for first, last, steps in schedules:
            made = cbtorch.optim.lr_scheduler.Polynomial(optimizer, first, last, steps)
        Rate.initial_epoch, Rate.made = 0, made
        return Rate(optimizer._optimizer, lambda step: 1.0)

    def rate(step):
        for first, last, steps in schedules[:-1]:
            if step < steps:
                return first + (last - first) * step / steps
            step -= steps
        first, last, steps = schedules[-1]
        return first + (last - first) * min(step / steps, 1)

    for group in optimizer.param_groups:
        group["lr"] = 1.0
    return LambdaLR(optimizer, rate)


class Rate(LambdaLR):
    """A scheduler of the script's that leaves the rate to the wafer."""

    def __init__(self, *arguments):
        self.cb_scheduler = Rate.made
        super().__init__(*arguments)

    def step(self):
        """Count a step."""
        self.last_epoch = max(self.last_epoch, 0) + 1

    def load_state_dict(self, state):
        """Begin at the step of a checkpoint."""
        self.last_epoch = Rate.initial_epoch = state["last_epoch"]

    def state_dict(self):
        return {"last_epoch": self.last_epoch}


class Runner:
    """The loop of a mode."""

    def __init__(self, params):
        run, self.training = params["runconfig"], args.mode == "train"
        torch.manual_seed(run["seed"])
        self.params, self.run, self.step, self.right, self.all = params, run, 0, 0, 0
        if ON_CS:
            cbtorch.initialize(
                service_workdir=args.model_dir, cs_ip=args.cs_ip, compile_only=args.compile_only
            )
        self.module = self.model = Language(params["model"])
        self.loader = torch.utils.data.DataLoader(Sentences(params["input"]), batch_size=None)
        options = params["optimizer"]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.1, eps=1e-5)
        self.scaler = None
        if ON_CS:
            cbtorch.state().full_config.matching.kernel.no_dcache_spill_splits = True
            self.model = cbtorch.module(self.model, cm.device())
            self.optimizer = cbtorch.optimizer(self.optimizer)
            self.optimizer.gradient_clipper = self.clip
            self.loader = cbtorch.dataloader(self.loader, use_parallel_loader=True)
            self.scaler = cbtorch.amp.GradScaler(
                loss_scale=options["loss_scaling_factor"], mixed_precision=False
            )
            self.at_end = cm.step_closure(self.at_end)
            self.count = cm.step_closure(self.count)
        self.rates = rates(self.optimizer, options["learning_rate"])

    def clip(self, parameters):
        """Limit the norm of the gradients."""
        nn.utils.clip_grad_norm_(parameters, self.params["optimizer"]["max_gradient_norm"])

    def load(self):
        """Begin with a checkpoint."""
        state = torch.load(args.checkpoint_path)
        self.module.load_state_dict(state["model"])
        if self.training:
            self.optimizer.load_state_dict(state["optimizer"])
            self.rates.load_state_dict(state["lr_scheduler"])
        self.step = state["global_step"]

    def loss_of(self, data):
        """The loss of a batch, whose dict the model changes."""
        data["weights"] = data.pop("mask").half() if ON_CS else data.pop("mask").float()
        loss, logits = self.model(**data)
        if not self.training:
            self.count(logits.argmax(-1).int(), data["labels"])
        return loss

    def count(self, predictions, labels):
        """Count the tokens that are right."""
        self.right += int((predictions == labels).sum())
        self.all += labels.numel()

    def at_end(self, step, loss):
        """Log the loss, and write a checkpoint in some steps."""
        if not ON_CS or cm.is_master_ordinal():
            print(f"| {args.mode} Step={step}, Loss={loss.item():.9f}", flush=True)
        if self.training and step % self.run["checkpoint_steps"] == 0:
            state = {
                "model": self.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "lr_scheduler": self.rates.state_dict(),
                "global_step": step,
            }
            path = f"{args.model_dir}/checkpoint_{step}.mdl"
            cm.save(state, path) if ON_CS else torch.save(state, path)

    def steps(self):
        """All steps of the run."""
        if args.checkpoint_path:
            self.load()
        self.module.train(self.training)
        last = self.run["max_steps" if self.training else "eval_steps"]
        first = self.step if self.training else 0
        while first < last:
            for data in self.loader:
                first += 1
                self.one(first, data)
                if first == last or args.compile_only:
                    return

    def one(self, number, data):
        """A step."""
        if self.training:
            self.optimizer.zero_grad()
        loss = self.loss_of(data)
        if self.training:
            (self.scaler(loss) if self.scaler else loss).backward()
            if not ON_CS:
                self.clip(self.model.parameters())
            self.optimizer.step()
            self.rates.step()
        self.at_end(number, loss)

    def go(self):
        """Run the mode."""
        os.makedirs(args.model_dir, exist_ok=True)
        if args.compile_only:
            self.steps()
            print("compiled:", cbtorch.compile(fabric_config_file=None, validate_only=False))
            return
        if ON_CS:
            payloads = cm.rendezvous("begin", f"of {cm.get_ordinal()}")  # waits for all tasks
            assert payloads == [f"of {rank}" for rank in range(cm.num_tasks())]
            mode = modes.TRAIN if self.training else modes.EVAL
            with cbtorch.Session(self.loader, mode):
                self.steps()
                cm.mark_step()
        else:
            with torch.set_grad_enabled(self.training):
                self.steps()
        if not self.training and (not ON_CS or cm.is_master_ordinal()):
            print(f"accuracy={self.right / self.all:.9f}")


with open(args.params) as file:
    Runner(yaml.safe_load(file)).go()
