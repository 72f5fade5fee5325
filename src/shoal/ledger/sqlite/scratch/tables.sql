-- Temporary tables of the writing connection, in memory. An operation first stores here which rows it moves and how it
-- classifies them, then moves them table by table; PostgreSQL does this in one statement with several CTEs. A batch is
-- one statement, because Python's sqlite3 releases the interpreter lock for every row: 200 small statements beside a
-- busy event loop wait 200 times, one waits once.

-- Lanes whose counters changed: they may admit items now.
create temp table touched (lane integer primary key);

create temp table admitted (
    item integer primary key, lane, run, queue, priority, epoch, tries, rescues, due
);

create temp table promoted (
    item integer primary key, lane, run, queue, priority, epoch, tries, rescues, slotted, in_line
);

create temp table started (item integer primary key, lane);

create temp table ended (
    item integer primary key, lane, run, queue, priority, epoch, tries, rescues, claimed_at, started_at,
    kind, outcome, delay, error, seconds, detail, holds, next_at, delay_max
);

create temp table keyed (
    space, hash, item, n, run, queue, key, record, old_row, old_queue, is_gone, verdict, stored
);

create temp table unleased (
    item integer primary key, lane, run, queue, priority, epoch, tries, rescues, claimed_at, started_at, worker,
    poison, straight, ordered, next_at, delay_max
);

create temp table dropped (
    item integer primary key, lane, queue, priority, epoch, tries, rescues, worker, claimed_at, slotted, unstarted,
    place
);

create temp table retried (
    item integer primary key, lane, queue, priority, epoch, state, worker, claimed_at, ended_at, seconds, outcome,
    error, detail, failure
);

create temp table grouped (
    item integer primary key, failure, ended_at, error
);

create temp table released (
    item integer primary key, lane, queue, priority, epoch, tries, rescues, was_ready
);
