"""The training loop of Hugging Face's course, chapter 3, over a model of transformers.

python hf_course.py CLASS: a small configuration with random weights, on synthetic samples that are
padded, so that an attention mask is a tensor of each batch.
"""

import sys

import torch
from bench_recorder import STEPS, finish, record
from hf_models import call_options, make_model, make_samples
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import get_scheduler

import cerebras_torch as cbtorch

BATCH_SIZE = 8

torch.manual_seed(0)
cbtorch.initialize(model_dir="model_dir")
model = make_model(sys.argv[1])
samples = make_samples(model, STEPS * BATCH_SIZE // 2)
options = call_options(model)
model = cbtorch.module(model)
train_dataloader = cbtorch.dataloader(DataLoader(samples, shuffle=True, batch_size=BATCH_SIZE))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)

num_epochs = 2
num_training_steps = num_epochs * len(train_dataloader)
lr_scheduler = get_scheduler(
    "linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=num_training_steps
)
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
progress_bar = tqdm(range(num_training_steps))

model.train()
with cbtorch.Session(model, optimizer, mode="train"):
    for _ in range(num_epochs):
        for batch in train_dataloader:
            batch = {k: v.to(device) for k, v in batch.items()}
            outputs = model(**batch, **options)
            loss = outputs.loss
            loss.backward()
            record(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            progress_bar.update(1)

finish(model)
