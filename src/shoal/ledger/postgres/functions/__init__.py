"""Server-side functions of the PostgreSQL ledger, one file per part."""
