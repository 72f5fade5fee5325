-- The ledger, version 1. An item's facts never change; its state is the table it stands in:
-- ready, waiting, delayed, lease, or outcome. Moving on is a delete here and an insert there, as on PostgreSQL.
--
-- Differences from PostgreSQL: times are whole microseconds since 1970, truth values 0 and 1, JSON is text. There are
-- no count deltas (one writer at a time, so counts are simply kept), no receipts and no claim numbers (a local file
-- does not lose answers). Ids that other processes may have cached are never used again (autoincrement).

create table run (
    no           integer primary key autoincrement,
    id           text not null unique,
    scraper      text not null,
    state        text not null default 'active'
                 check (state in ('active', 'paused', 'cancelled', 'finished', 'removed')),
    sealed       integer not null default 0,
    settings     text not null,
    code_version text,
    key_version  integer not null,
    max_attempts integer not null,
    max_rescues  integer not null,
    created_at   integer not null,
    changed_at   integer not null,
    finished_at  integer,
    idempotency_key     text,
    -- Active, but no worker takes its items while there are workers: it keeps no place in lanes that others share.
    idle         integer not null default 0,
    -- What is still to be done to its lanes, and how far that has come, a JSON list: see idle.py.
    lane_work    text check (lane_work in ('give', 'ask')),
    lane_place   text
) strict;
create index run_active on run (no) where state = 'active';
create index run_lane_work on run (no) where lane_work is not null;
-- One run for one idempotency key: a slot of a schedule, a member of a collection.
create unique index run_idempotency_key on run (idempotency_key) where idempotency_key is not null and state <> 'removed';

create table stage (
    id             integer primary key autoincrement,
    run            integer not null,
    name           text not null,
    max_attempts   integer,
    lane_limit     integer not null,
    lane_delay_min real not null,
    lane_delay_max real not null,
    lane_ordered   integer not null,
    lane_shared    integer not null,
    unique (run, name)
) strict;

-- What callers note about a run: whether its list was stored to its end, who called its hooks.
create table run_note (
    run   integer not null references run (no),
    name  text not null,
    value text not null,
    at    integer not null,
    primary key (run, name)
) strict, without rowid;

-- priority_min, priority_max: every item it ever got lies between them. A run whose queues are not all of one priority
-- is claimed with a look at the head of each.
create table queue (
    id           integer primary key autoincrement,
    run          integer not null,
    stage        integer not null,
    partition    text not null,
    priority_min integer not null,
    priority_max integer not null,
    unique (stage, partition)
) strict;
create index queue_run on queue (run);

-- Facts. Ids come from `counter`, so that a removed run's ids are not given out again: a lease is (item, epoch), and a
-- worker that slept through the removal must not commit to somebody else's item.
create table item (
    id           integer primary key,
    run          integer not null,
    stage        integer not null,
    queue        integer not null,
    priority     integer not null,
    created_at   integer not null,
    lane         integer,
    parent       integer,
    not_before   integer,
    max_attempts integer,
    key_hash     blob not null,
    key          text,
    url          text,
    payload      text
) strict;
create unique index item_key on item (stage, key_hash);
-- A run's items are those of its queues: for lists, and for removing it.
create index item_queue on item (queue);

create table counter (
    name  text primary key,
    value integer not null
) strict, without rowid;
insert into counter (name, value) values ('item', 0);

-- Claimable rows and nothing else. The primary key is the claim order.
create table ready (
    queue    integer not null,
    priority integer not null,
    item     integer not null,
    lane     integer,
    since    integer not null,
    epoch    integer not null,
    tries    integer not null,
    rescues  integer not null,
    primary key (queue, priority, item)
) strict, without rowid;

-- Behind a full lane. The run is part of the key so that a paused run's rows are never scanned over.
create table waiting (
    lane     integer not null,
    run      integer not null,
    priority integer not null,
    item     integer not null,
    since    integer not null,
    queue    integer not null,
    epoch    integer not null,
    tries    integer not null,
    rescues  integer not null,
    primary key (lane, run, priority, item)
) strict, without rowid;
-- For lists, and for orders about a whole run.
create index waiting_queue on waiting (queue, item);

-- Not before due_at. slotted: it counts among its lane's taken places while it waits.
create table delayed (
    item     integer primary key,
    lane     integer,
    due_at   integer not null,
    since    integer not null,
    run      integer not null,
    queue    integer not null,
    priority integer not null,
    epoch    integer not null,
    tries    integer not null,
    rescues  integer not null,
    slotted  integer not null,
    reason   text not null check (reason in ('not_before', 'retry', 'throttled', 'lane'))
) strict;
create index delayed_due on delayed (due_at);
-- For lists, and for orders about a whole run.
create index delayed_queue on delayed (queue);
-- For an operator who lifts a block or shortens a delay.
create index delayed_lane on delayed (lane) where slotted;

-- Rights to work. No index on worker: leases are few, and only the reaper looks for them that way.
-- paced: its lane had a delay when it was claimed, so its worker reserves its start. started_at: when it did, or when
-- the start was reported.
create table lease (
    item       integer primary key,
    lane       integer,
    claimed_at integer not null,
    started_at integer,
    epoch      integer not null,
    worker     integer not null,
    run        integer not null,
    queue      integer not null,
    priority   integer not null,
    tries      integer not null,
    rescues    integer not null,
    paced      integer not null
) strict;

-- The end of an item, with its last attempt. Earlier attempts are in `attempt`.
create table outcome (
    item       integer primary key,
    claimed_at integer not null,
    ended_at   integer not null,
    run        integer not null,
    queue      integer not null,
    epoch      integer not null,
    worker     integer,
    seconds    real not null,
    tries      integer not null,
    rescues    integer not null,
    state      text not null check (state in ('done', 'dead', 'cancelled')),
    outcome    text not null,
    error      text,
    detail     text
) strict;
create index outcome_not_done on outcome (run, state, item) where state <> 'done';

create table attempt (
    item       integer not null,
    epoch      integer not null,
    claimed_at integer not null,
    ended_at   integer not null,
    run        integer not null,
    worker     integer,
    seconds    real not null,
    outcome    text not null,
    error      text,
    detail     text,
    primary key (item, epoch)
) strict, without rowid;

-- Records may be large, so they stand in a table of their own order; the key beside it is small.
create table result (
    run    integer not null,
    item   integer not null,
    n      integer not null,
    record text not null,
    primary key (run, item, n)
) strict;

-- A lane of run 0 is shared by all runs. taken: its items in ready, lease, or delayed with a slot.
-- unstarted: those of them without a reserved or reported start. visiting, wanted: places that requests from elsewhere
-- have, and wait for (see visit); items leave room for both.
-- next_at: when the next start may be reserved, by the worker next_by, whose starts those since run_from are; others keep
-- `handover` microseconds more, because
-- that worker may send so late.
-- delay_*, the delay that holds, is own_delay_*, which a stage declared, raised to the floor (robots.txt's crawl-delay);
-- or, when it is fixed, what an operator set.
create table lane (
    id            integer primary key autoincrement,
    next_at       integer,
    blocked_until integer,
    run           integer not null,
    max_active    integer not null,
    delay_min     real not null,
    delay_max     real not null,
    taken         integer not null default 0,
    unstarted     integer not null default 0,
    waiting       integer not null default 0,
    visiting      integer not null default 0,
    wanted        integer not null default 0,
    next_by       integer,
    run_from      integer,
    handover      integer not null default 0,
    ordered       integer not null,
    paused        integer not null default 0,
    by_operator   integer not null default 0,
    delay_fixed   integer not null default 0,
    own_delay_min real not null,
    own_delay_max real not null,
    floor         real not null default 0,
    -- The stage whose policy it has; stages of newer runs outrank those of older ones.
    declared_by   integer not null default 0,
    key           text not null,
    blocked_why   text,
    floor_why     text,
    unique (run, key)
) strict;

-- How many items that have no start yet may be out at once, of a lane with a delay (ahead); how many more a lane lets out
-- now, and not before when: 100 ms before the next start, enough for a claim and a reservation.
create view lane_room as
select l.id, l.run, 1 + cast(min(1e6, 0.1 / l.delay_max) as integer) as ahead,
       case when l.paused or l.waiting = 0 then 0
            when l.delay_max > 0
            then max(0, min(l.max_active - l.taken - l.visiting - l.wanted,
                            1 + cast(min(1e6, 0.1 / l.delay_max) as integer) - l.unstarted))
            else max(0, l.max_active - l.taken - l.visiting - l.wanted) end as allowance,
       max(case when l.delay_max > 0 then coalesce(l.next_at, 0) - 100000 else 0 end, coalesce(l.blocked_until, 0)) as due
from lane l;

-- Places in a host's lane for requests that come from elsewhere: redirects, APIs, robots.txt. entered: it counts in the
-- lane's `visiting`; before that it waits and counts in `wanted`. They go with their worker, as leases do.
create table visit (
    id      integer primary key,
    lane    integer not null,
    since   integer not null,
    worker  integer not null,
    entered integer not null
) strict;
create index visit_lane on visit (lane, since, id);

create table worker (
    no            integer primary key autoincrement,
    id            text not null unique,
    node          text not null,
    pid           integer not null,
    version       text not null,
    code          text,
    state         text not null default 'live' check (state in ('live', 'draining', 'stopped', 'lost')),
    lease_seconds real not null,
    scope         text not null,
    -- What it said about itself with its last heartbeat, and when: a claim is a sign of life too, and says nothing.
    report        text,
    reported_at   integer,
    started_at    integer not null,
    beat_at       integer not null,
    ended_at      integer
) strict;
create index worker_present on worker (no) where state in ('live', 'draining');

create table queue_count (
    queue      integer primary key,
    ready      integer not null default 0,
    waiting    integer not null default 0,
    delayed    integer not null default 0,
    leased     integer not null default 0,
    done       integer not null default 0,
    dead       integer not null default 0,
    cancelled  integer not null default 0,
    results    integer not null default 0,
    duplicates integer not null default 0,
    -- When an attempt on one of its items last ended, however it ended.
    moved_at   integer
) strict;

-- What each worker finished per minute: rates, progress, "completed in the last hour".
create table minute_count (
    minute    integer not null,
    queue     integer not null,
    worker    integer not null,
    done      integer not null default 0,
    dead      integer not null default 0,
    retried   integer not null default 0,
    throttled integer not null default 0,
    results   integer not null default 0,
    seconds   real not null default 0,
    primary key (minute, queue, worker)
) strict, without rowid;
create index minute_count_queue on minute_count (queue);

create table setting (
    version integer primary key,
    scope   text not null,
    value   text not null,
    set_by  text not null,
    set_at  integer not null
) strict;
create index setting_scope on setting (scope, version);

-- Things that one of many processes is to do, once: a slot of a schedule, the telling of an alert.
create table lock (
    name        text primary key,
    taken_by    text not null,
    taken_at    integer not null,
    until       integer not null,
    finished_at integer,
    value       text not null default '{}'
) strict, without rowid;

create table event (
    id      integer primary key,
    at      integer not null,
    run     integer,
    actor   text not null,
    action  text not null,
    subject text not null,
    detail  text not null
) strict;
create index event_run on event (run, id);

-- When a piece of upkeep was last done, so that many workers do it as often as one.
-- place: where a piece that is done step by step goes on.
create table tick (
    name  text primary key,
    at    integer not null,
    place integer not null default 0
) strict, without rowid;
insert into tick (name, at) values ('reap', 0), ('lanes', 0), ('tidy', 0), ('bulk', 0);

-- What to add to the kernel's clock to get the ledger's, for each boot of a machine. See clock.py.
create table clock (
    boot   text primary key,
    offset integer not null
) strict, without rowid;

-- Plain views, for people with the sqlite3 shell. They read the tables as they are. Ages are counted by the wall clock:
-- the shell does not know the ledger's, and the two differ only when somebody has set the wall clock.

-- S0.16, S1.23: who holds what, of which run and stage.
create view active_claims as
select w.id as claimed_by, r.id as run_id, r.scraper, g.name as stage, count(*) as records,
       strftime('%Y-%m-%d %H:%M:%f', min(s.claimed_at) / 1e6, 'unixepoch') as first_start,
       strftime('%Y-%m-%d %H:%M:%f', max(s.claimed_at) / 1e6, 'unixepoch') as last_claim
from lease s
join worker w on w.no = s.worker
join run r on r.no = s.run
join queue k on k.id = s.queue
join stage g on g.id = k.stage
group by w.id, r.no, g.id order by records desc;

-- S0.18: claims older than 30 minutes, oldest first.
create view stale_claims as
select r.id as run_id, r.scraper, g.name as stage, s.item, coalesce(i.key, i.url) as name, w.id as claimed_by,
       strftime('%Y-%m-%d %H:%M:%f', s.claimed_at / 1e6, 'unixepoch') as started,
       round((julianday('now') - julianday(s.claimed_at / 1e6, 'unixepoch')) * 1440, 1) as minutes_ago
from lease s
join worker w on w.no = s.worker
join run r on r.no = s.run
join item i on i.id = s.item
join stage g on g.id = i.stage
where s.claimed_at / 1e6 < strftime('%s', 'now') - 1800
order by s.claimed_at;

-- Counts per queue.
create view queue_depth as
select r.id as run_id, r.scraper, g.name as stage, k.partition, k.id as queue, c.ready, c.waiting, c.delayed,
       c.leased, c.done, c.dead, c.cancelled, c.results, c.duplicates
from run r
join queue k on k.run = r.no
join stage g on g.id = k.stage
join queue_count c on c.queue = k.id
where r.state <> 'removed';

-- S0.19, S3.26: how many items are in which state, per run and stage.
create view status_counts as
select q.run_id, q.scraper, q.stage, s.status,
       sum(case s.status when 'ready' then q.ready when 'waiting' then q.waiting when 'delayed' then q.delayed
                         when 'leased' then q.leased when 'done' then q.done when 'dead' then q.dead
                         else q.cancelled end) as items
from queue_depth q
cross join (select 'ready' as status union all select 'waiting' union all select 'delayed' union all select 'leased'
            union all select 'done' union all select 'dead' union all select 'cancelled') s
group by q.run_id, q.scraper, q.stage, s.status
having items <> 0;

-- S0.17: what each worker completed in the last hour, of which run and stage, most first.
create view completed_by_worker as
select w.id as completed_by, r.id as run_id, r.scraper, g.name as stage, sum(o.state = 'done') as done,
       sum(o.state = 'dead') as dead
from outcome o
join worker w on w.no = o.worker
join run r on r.no = o.run
join queue k on k.id = o.queue
join stage g on g.id = k.stage
where o.ended_at / 1e6 > strftime('%s', 'now') - 3600 and o.state <> 'cancelled'
group by w.id, r.no, g.id order by done desc;

-- S1.18: what failed, why, and how often it was tried again.
create view failed_items as
select r.id as run_id, r.scraper, g.name as stage, o.item, coalesce(i.url, i.key) as url, o.outcome,
       o.error as error_message, max(o.tries - 1, 0) as retry_count, strftime('%Y-%m-%d %H:%M:%f', o.ended_at / 1e6, 'unixepoch') as failed_at
from outcome o
join run r on r.no = o.run
join item i on i.id = o.item
join stage g on g.id = i.stage
where o.state = 'dead';
