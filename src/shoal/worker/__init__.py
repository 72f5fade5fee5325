"""One worker: a process that claims items, runs attempts and commits their results. Calls and data go one way:

    ledger -> Claimer -> LeaseBuffer -> Slots -> AttemptRunner -> CommitQueue -> Committer -> ledger
                                                  |  Attempt: Politeness, fetch, providers, handler
    beside them: Heartbeat and LoopWatchdog (threads), Maintenance, AutoConcurrency

State is created first (WorkerEvents, WorkerIdentity, LeaseBuffer); each part gets the parts it uses in its constructor.
No part calls back: it returns a value, puts into a queue or sets an event. `worker.py` creates and supervises them.
"""
