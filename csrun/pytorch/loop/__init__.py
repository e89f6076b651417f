"""The user's loop in a Session: its steps, and the values that it reads."""
