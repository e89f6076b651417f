"""A Recording made CIRH, computed on real tensors, and held beside another."""
