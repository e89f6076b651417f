"""Constants of the original's configuration."""
