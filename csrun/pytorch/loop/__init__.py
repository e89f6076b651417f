"""The user's loop in a Session: its steps, and what it reads of them."""
