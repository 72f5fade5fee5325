"""The ledger on PostgreSQL."""
