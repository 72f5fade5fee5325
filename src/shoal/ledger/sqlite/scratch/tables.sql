-- Temporary tables of the writing connection, in memory. An operation first notes here which rows it moves and how it
-- judges them, then moves them table by table: what PostgreSQL does with one statement of many parts. A whole batch
-- goes in one statement, because Python's sqlite3 gives up the interpreter's lock at every row it steps over: 200
-- small statements beside a busy event loop take 200 turns of waiting, one takes one.

-- Lanes whose figures changed: they may have room now.
create temp table touched (lane integer primary key);

create temp table admitted (
    item integer primary key, lane, run, queue, priority, epoch, tries, rescues, due
);

create temp table promoted (
    item integer primary key, lane, run, queue, priority, epoch, tries, rescues, slotted, in_line
);

create temp table begun (item integer primary key, lane);

create temp table ended (
    item integer primary key, lane, run, queue, priority, epoch, tries, rescues, claimed_at, started_at,
    kind, outcome, delay, error, seconds, detail, holds, next_at, delay_max
);

create temp table unleased (
    item integer primary key, lane, run, queue, priority, epoch, tries, rescues, claimed_at, started_at, worker,
    poison, straight, ordered, next_at, delay_max
);

create temp table dropped (
    item integer primary key, lane, queue, priority, epoch, tries, rescues, worker, claimed_at, slotted, unstarted,
    place
);

create temp table revived (
    item integer primary key, lane, queue, priority, epoch, state, worker, claimed_at, ended_at, seconds, outcome,
    error, detail
);

create temp table yielded (
    item integer primary key, lane, queue, priority, epoch, tries, rescues, was_ready
);
