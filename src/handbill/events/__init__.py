"""Facts that happened: taken at the edge, kept in the journal, counted once by one pipeline."""
