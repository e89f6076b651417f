"""The values of the user's model and optimizer: into the store, and given back."""
