"""PyTorch training loops on a CS system: what scripts import as `cerebras_torch`."""
