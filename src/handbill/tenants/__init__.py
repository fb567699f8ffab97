"""Tenants: who owns what, who may do what, and who did what."""
