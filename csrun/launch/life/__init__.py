"""The life of a job: its state, the first cause of its failure, and what the user is told of it."""
