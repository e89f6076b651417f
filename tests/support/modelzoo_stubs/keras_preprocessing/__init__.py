"""keras_preprocessing as far as tokenizers of the Model Zoo import it."""
