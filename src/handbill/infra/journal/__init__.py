"""The journal: facts that already happened, in lanes, in order, durable before anybody is told so."""
