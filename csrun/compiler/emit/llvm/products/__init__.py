"""Matrix products: packed panels, blocks and tiles, and the calls of their functions."""
