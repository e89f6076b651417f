"""File formats: from a path to arrays, or to samples in turn."""
