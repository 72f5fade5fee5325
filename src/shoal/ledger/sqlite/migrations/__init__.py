"""Migrations of the SQLite schema, in the order of their numbers."""
