"""The loop of accelerate's quick tour over a BERT."""

import torch
from accelerate import Accelerator
from bench_recorder import STEPS, finish, record
from hf_models import make_model, make_samples
from torch.utils.data import DataLoader

import cerebras_torch as cbtorch

BATCH_SIZE = 8

torch.manual_seed(0)
cbtorch.initialize(model_dir="model_dir")
accelerator = Accelerator(cpu=True)
model = make_model("BertForSequenceClassification")
samples = make_samples(model, STEPS * BATCH_SIZE)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
loader = DataLoader(samples, batch_size=BATCH_SIZE, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
model = cbtorch.module(model)
loader = cbtorch.dataloader(loader)
model.train()
with cbtorch.Session(model, optimizer, mode="train"):
    for batch in loader:
        optimizer.zero_grad()
        loss = model(**batch).loss
        accelerator.backward(loss)
        record(loss)
        optimizer.step()
finish(model)
