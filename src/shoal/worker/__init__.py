"""Claim, attempt, commit, heartbeat, drain: one process that works."""
