"""Trainer of transformers over a BERT, as in its quick tour, in a Session's block."""

import torch
from bench_recorder import STEPS, finish, record
from hf_models import make_model, make_samples
from transformers import Trainer, TrainerCallback, TrainingArguments

import cerebras_torch as cbtorch

BATCH_SIZE = 8


class Recording(Trainer):
    """Trainer whose losses are recorded."""

    def training_step(self, *arguments: object, **options: object) -> torch.Tensor:
        loss = super().training_step(*arguments, **options)
        record(loss)
        return loss


torch.manual_seed(0)
cbtorch.initialize(model_dir="model_dir")
model = make_model("BertForSequenceClassification")
samples = make_samples(model, STEPS * BATCH_SIZE)
model = cbtorch.module(model)
options = TrainingArguments(
    "trained", per_device_train_batch_size=BATCH_SIZE, num_train_epochs=1, report_to=[],
    logging_steps=5, save_strategy="no", use_cpu=True, disable_tqdm=True,
)  # fmt: skip
trainer = Recording(model=model, args=options, train_dataset=samples, callbacks=[TrainerCallback])
trainer.create_optimizer_and_scheduler(STEPS)
loader = cbtorch.dataloader(trainer.get_train_dataloader())
trainer.get_train_dataloader = lambda: loader
with cbtorch.Session(model, trainer.optimizer, mode="train"):
    trainer.train()
finish(model)
