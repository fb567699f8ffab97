"""The gate's own checks: lints that run in seconds, generated pages, and tests that plant a violation of each kind."""
