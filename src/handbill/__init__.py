"""Handbill: show, count, know, reach, account."""

__version__ = "0.1.0"
