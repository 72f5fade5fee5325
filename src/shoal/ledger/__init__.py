"""The ledger: the database of runs, items, leases, lanes and results. protocols.py has its interface."""
