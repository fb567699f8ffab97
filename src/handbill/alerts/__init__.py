"""What must be known within a minute: the conditions, their Prometheus rules, and messages without Prometheus."""
