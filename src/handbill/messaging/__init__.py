"""Reach: campaigns, their messages, and the providers that carry them."""
