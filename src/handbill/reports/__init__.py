"""Reads across slices: spend beside what Handbill itself has counted. Owns no table."""
