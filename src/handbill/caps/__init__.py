"""How often somebody saw something: the exact rolling window, one small value per person, rebuilt from PostgreSQL."""
