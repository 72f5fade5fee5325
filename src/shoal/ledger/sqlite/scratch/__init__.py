"""Temporary tables of the SQLite ledger's writing connection."""
