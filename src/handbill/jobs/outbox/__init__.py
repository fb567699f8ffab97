"""The transactional outbox: work is recorded in the transaction of the change, and relayed to the queues fairly."""
