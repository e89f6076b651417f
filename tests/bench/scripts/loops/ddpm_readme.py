"""A diffusion model over a U-Net, as in denoising-diffusion-pytorch's README."""

import torch
from bench_recorder import STEPS, finish, record
from denoising_diffusion_pytorch import GaussianDiffusion, Unet
from torch.utils.data import DataLoader, TensorDataset

import cerebras_torch as cbtorch

BATCH_SIZE, IMAGE = 4, 16

torch.manual_seed(0)
cbtorch.initialize(model_dir="model_dir")
unet = Unet(dim=16, dim_mults=(1, 2), flash_attn=False)
diffusion = cbtorch.module(GaussianDiffusion(unet, image_size=IMAGE, timesteps=100))
optimizer = torch.optim.Adam(diffusion.parameters(), lr=8e-5)
images = TensorDataset(torch.rand(STEPS * BATCH_SIZE, 3, IMAGE, IMAGE))
loader = cbtorch.dataloader(DataLoader(images, batch_size=BATCH_SIZE))
with cbtorch.Session(diffusion, optimizer, mode="train"):
    for (training_images,) in loader:
        loss = diffusion(training_images)
        loss.backward()
        record(loss)
        optimizer.step()
        optimizer.zero_grad()
finish(diffusion)
