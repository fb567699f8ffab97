"""What the house says about itself: log lines, metrics and, when configured, traces."""
