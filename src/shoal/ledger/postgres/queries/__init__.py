"""Named statements of the PostgreSQL ledger."""
