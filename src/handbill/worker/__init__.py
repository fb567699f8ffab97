"""The shell around the chores: start, stop in order, signals, heartbeat, health page."""
