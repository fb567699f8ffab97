"""Benches: `python -m benches.NAME [--quick]` prints one JSON line at its end; `python -m benches` runs all of them."""
