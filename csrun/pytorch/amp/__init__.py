"""Automatic mixed precision: loss scaling, PyTorch's own scalers, and autocast."""
