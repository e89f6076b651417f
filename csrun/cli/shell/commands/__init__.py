"""The commands of the admin shell, a noun a file."""
