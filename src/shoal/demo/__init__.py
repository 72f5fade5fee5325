"""A made-up scraper on a real ledger: `shoal demo`. The site is pretended, the bookkeeping is not."""
