"""The life of a job: its state, the first cause of its failure, and the messages about it."""
