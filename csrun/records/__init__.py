"""Records of a run in model_dir: checkpoints, events, performance, params, and its log lines."""
