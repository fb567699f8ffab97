"""Jobs: queues in BullMQ's layout on Redis, workers, cron, limits per tenant, outbox, dead letters. Knows no slice."""
