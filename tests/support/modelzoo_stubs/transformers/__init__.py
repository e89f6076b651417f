"""transformers as far as modules of the Model Zoo import it."""
