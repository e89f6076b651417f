"""Constants of the original's compiler, for `state().full_config`."""
