"""What a run does, read from the ledger: moments, readings, progress displays, and the log."""
