"""torchvision as far as fc_mnist of the Model Zoo imports it, over made samples."""

from torchvision import datasets, transforms

__all__ = ["datasets", "transforms"]
