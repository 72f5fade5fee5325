"""Migrations of the PostgreSQL schema, in the order of their numbers."""
