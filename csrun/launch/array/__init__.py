"""Arrays of jobs: one command run once per index, each time with other values."""
