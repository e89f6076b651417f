"""What a Session's loop meets: its steps, recorded or of tokens, and what it reads of them."""
