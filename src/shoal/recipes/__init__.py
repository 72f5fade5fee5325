"""Complete scraping systems built on Shoal, each a scraper that a user could have written."""
