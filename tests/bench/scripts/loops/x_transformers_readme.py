"""A decoder of x-transformers in the loop of its README: `x_transformers_readme.py OPTION`."""

import sys

import torch
from bench_recorder import STEPS, finish, record
from torch.utils.data import DataLoader, TensorDataset
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

import cerebras_torch as cbtorch

BATCH_SIZE, LENGTH, VOCABULARY = 8, 16, 50

torch.manual_seed(0)
cbtorch.initialize(model_dir="model_dir")
layers = Decoder(dim=32, depth=2, heads=4, **{sys.argv[1]: True})
decoder = TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=LENGTH + 1, attn_layers=layers)
model = cbtorch.module(AutoregressiveWrapper(decoder))
tokens = torch.randint(0, VOCABULARY, (STEPS * BATCH_SIZE, LENGTH + 1))
loader = cbtorch.dataloader(DataLoader(TensorDataset(tokens), batch_size=BATCH_SIZE))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
model.train()
with cbtorch.Session(model, optimizer, mode="train"):
    for (sequence,) in loader:
        loss = model(sequence)
        loss.backward()
        record(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
finish(model)
