"""What a compile tells its reader."""
