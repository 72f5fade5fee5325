"""Observation of runs: snapshots, rates, failures, progress displays, the doctor's checks, and the log."""
