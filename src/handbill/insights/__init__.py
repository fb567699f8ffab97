"""Reading what happened: trends, funnels, retention, search, the live tail and where one event went."""
