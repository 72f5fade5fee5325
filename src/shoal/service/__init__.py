"""Operations on runs, workers, schedules and ledgers: they return values and emit events, and print nothing."""
