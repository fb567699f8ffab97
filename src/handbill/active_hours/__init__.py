"""The hours of the day in which each person is active, learnt from their own events."""
