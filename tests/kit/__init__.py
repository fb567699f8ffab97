"""Tools shared by all tests: engines once per run, processes, crash points, clocks, waiting."""
