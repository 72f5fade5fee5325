"""Fetching pages: HTTP, robots.txt, the body store, and what an answer means. Nothing here knows the ledger."""
