"""Fetching pages: HTTP, robots.txt, sitemaps, the body store, response classification. Independent of the ledger."""
