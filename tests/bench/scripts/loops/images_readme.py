"""Image and video models of packages in the loop of their READMEs: `images_readme.py MODEL`."""

import sys

import torch
from bench_recorder import finish, record, without_dropout
from synthetic import Rows
from torch import nn
from torch.utils.data import DataLoader

import cerebras_torch as cbtorch

IMAGE, FRAMES, CLASSES, BATCH_SIZE = 32, 4, 10, 8


def make_vit() -> nn.Module:
    from vit_pytorch import ViT

    sizes = {"image_size": IMAGE, "patch_size": 8, "num_classes": CLASSES, "dim": 32}
    return ViT(**sizes, depth=2, heads=4, mlp_dim=64, dropout=0.0, emb_dropout=0.0)


def make_timm_resnet() -> nn.Module:
    import timm

    return timm.create_model("resnet18", num_classes=CLASSES)


def make_cct_3d() -> nn.Module:
    from vit_pytorch.cct_3d import CCT

    sizes = {"img_size": IMAGE, "num_frames": FRAMES, "embedding_dim": 32, "num_classes": CLASSES}
    layers = {"n_conv_layers": 1, "num_layers": 2, "num_heads": 2, "mlp_ratio": 2.0}
    window = {"kernel_size": 3, "frame_kernel_size": 3, "stride": 2, "padding": 1}
    pool = {"pooling_kernel_size": 3, "pooling_stride": 2, "pooling_padding": 1}
    return CCT(**sizes, **layers, **window, **pool, positional_embedding="learnable")


MODELS = {"vit": make_vit, "timm-resnet18": make_timm_resnet, "cct-3d": make_cct_3d}

torch.manual_seed(0)
cbtorch.initialize(model_dir="model_dir")
model = cbtorch.module(without_dropout(MODELS[sys.argv[1]]()))
frames = (FRAMES,) if sys.argv[1].endswith("3d") else ()
data = Rows((3, *frames, IMAGE, IMAGE), CLASSES, BATCH_SIZE)
loader = cbtorch.dataloader(DataLoader(data, batch_size=BATCH_SIZE, shuffle=True))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
with cbtorch.Session(model, optimizer, criterion, mode="train"):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        record(loss)
        optimizer.step()
finish(model)
