"""requests, which modules of the Model Zoo import for downloads."""
