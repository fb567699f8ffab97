"""What other people's clients send, made into one kind of event. Pure: bytes, headers and a moment in, values out."""
