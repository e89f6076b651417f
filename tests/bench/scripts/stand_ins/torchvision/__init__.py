"""Stand-in for torchvision, whose wheels need another build of PyTorch than the one installed.

Data sets are synthetic, transforms other than Normalize do nothing, images are not written, and
models are timm's.
"""

from torchvision import datasets, models, transforms, utils

__version__ = "0.0"
__all__ = ["datasets", "models", "transforms", "utils"]
