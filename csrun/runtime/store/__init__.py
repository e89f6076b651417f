"""MemoryX's store: where it lies, which of its pages stay in memory, and its first values."""
