"""What a loop does to gradients, recorded and in the steps that are not."""
