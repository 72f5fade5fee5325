"""Something to try Shoal on: a shop on the loopback, and a scraper for it."""
