"""The outside world's stand-in: a Graph server that keeps Meta's limits, misbehaves on a seed, and writes it all down.

A program of its own (`handbill fake-graph`). It shares no rule with the product: what it counts, it counts its own way,
so that an error in ours is not repeated here.
"""
