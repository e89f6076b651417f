"""One step of a loaded program: batches in, groups of weights, results out."""
