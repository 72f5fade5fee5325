"""The ledger on SQLite: one file, several processes."""
