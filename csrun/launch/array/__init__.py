"""Arrays of jobs: one command run once per index, with different values of some keys."""
