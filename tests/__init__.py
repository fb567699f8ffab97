"""What proves the laws. Levels: unit (no engine), store (engines), e2e (processes), architecture, browser."""
