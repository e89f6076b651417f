"""LoRA of peft over a frozen GPT-2, as in peft's quick tour."""

import torch
from bench_recorder import STEPS, finish, record
from hf_models import make_model, make_samples
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader

import cerebras_torch as cbtorch

BATCH_SIZE = 8

torch.manual_seed(0)
cbtorch.initialize(model_dir="model_dir")
base = make_model("GPT2LMHeadModel")
samples = make_samples(base, STEPS * BATCH_SIZE)
config = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, lora_dropout=0.0)
model = cbtorch.module(get_peft_model(base, config))
loader = cbtorch.dataloader(DataLoader(samples, batch_size=BATCH_SIZE))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.train()
with cbtorch.Session(model, optimizer, mode="train"):
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        record(loss)
        optimizer.step()
        optimizer.zero_grad()
finish(model)
