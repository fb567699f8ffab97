"""The script for pages in a real browser."""
