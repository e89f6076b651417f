"""Chief's side of a run: step orders, clients of its peers, checkpoints, traces."""
