"""What is shown and what came of it: the catalogue, tracking, schedules and stats."""
