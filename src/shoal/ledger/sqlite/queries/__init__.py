"""Named statements of the SQLite ledger."""
