"""MemoryX's store: its location, its resident pages, and its initial values."""
