"""Models built without memory, and initialization of their tensors on demand."""
