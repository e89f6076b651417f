"""What a loop does to gradients."""
