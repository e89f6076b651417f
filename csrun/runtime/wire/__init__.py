"""Transport between the roles: channels for messages, rings for batches, rendezvous of peers."""
