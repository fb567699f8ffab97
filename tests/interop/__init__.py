"""Our queues beside Node's BullMQ 5 and 6 and Bull Board. Needs Node; run with `python -m tests.interop`."""
