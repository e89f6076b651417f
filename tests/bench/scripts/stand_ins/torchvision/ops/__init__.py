"""Operators that timm imports and no script here calls."""
