"""Pure helpers that every room may use: errors, clock, ids, retries, telemetry. Knows no engine and no slice."""
