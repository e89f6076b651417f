"""Models built without memory, and values of their tensors when they are needed."""
