"""What authors use: a scraper, its stages, providers and hooks, records and link following."""
