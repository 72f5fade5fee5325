"""The ledger: the database that holds runs, items, leases, lanes and results. See protocols.py for what it can do."""
