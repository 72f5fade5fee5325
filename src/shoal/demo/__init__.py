"""The demo: a shop on the loopback, a scraper for it, and a check of the scrape."""
