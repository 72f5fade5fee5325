"""What authors use: a scraper, its stages, and what their functions may ask for."""
