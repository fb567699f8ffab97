"""The HTTP face of the embedded ClickHouse: what a ClickHouse server says on port 8123, said by our own process."""
