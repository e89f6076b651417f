"""Values of the user's model and optimizer, copied to the store and back."""
