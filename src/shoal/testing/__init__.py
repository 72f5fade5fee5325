"""Public helpers for testing ledgers: a conformance suite, a model-based state machine, and fault injection."""
