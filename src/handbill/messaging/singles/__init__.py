"""Single messages: one request, one message, the same rows and outcomes as those of campaigns."""
