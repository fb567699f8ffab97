"""Contacts: who may be written to, how they came in, and who must not be disturbed."""
