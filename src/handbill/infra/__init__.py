"""The engines and how we speak to them: PostgreSQL, Redis, ClickHouse, the journal. Knows no slice."""
