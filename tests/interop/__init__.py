"""Our queues beside Node's BullMQ 5 and 6 and Bull Board, and clients of other products in Node and in Chromium.

Needs Node and Chromium; run with `python -m tests.interop`.
"""
