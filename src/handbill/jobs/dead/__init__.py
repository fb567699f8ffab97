"""Dead letters: what failed for good is kept in PostgreSQL, with a way back."""
