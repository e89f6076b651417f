"""Automatic mixed precision: the scaler of the loss, PyTorch's own scalers, and autocast."""
