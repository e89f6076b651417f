"""Configuration of the original's TensorFlow package."""
