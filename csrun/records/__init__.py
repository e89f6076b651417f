"""What a run leaves in model_dir: checkpoints, events, performance, params, and its log lines."""
