"""What the ads cost: connections, syncs, days as they stand, and what was believed about them before."""
