"""Egress: what requests go out as. Pools of exits, their health and budgets, shared through the ledger."""
