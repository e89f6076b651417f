"""What goes between the roles: channels for messages, rings for batches, how peers meet."""
