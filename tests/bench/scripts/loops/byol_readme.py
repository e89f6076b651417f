"""BYOL over a ResNet in the loop of byol-pytorch's README."""

import torch
from bench_recorder import STEPS, finish, record
from byol_pytorch import BYOL
from torch.utils.data import DataLoader, TensorDataset
from torchvision import models

import cerebras_torch as cbtorch

BATCH_SIZE, IMAGE = 4, 32

torch.manual_seed(0)
cbtorch.initialize(model_dir="model_dir")
resnet = models.resnet18(num_classes=10)
learner = BYOL(resnet, image_size=IMAGE, hidden_layer=-2, projection_hidden_size=64)
learner = cbtorch.module(learner)
opt = torch.optim.Adam(learner.parameters(), lr=3e-4)
data = TensorDataset(torch.rand(STEPS * BATCH_SIZE, 3, IMAGE, IMAGE))
loader = cbtorch.dataloader(DataLoader(data, batch_size=BATCH_SIZE))
with cbtorch.Session(learner, opt, mode="train"):
    for (images,) in loader:
        loss = learner(images)
        opt.zero_grad()
        loss.backward()
        record(loss)
        opt.step()
        learner.update_moving_average()
finish(learner)
