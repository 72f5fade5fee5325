-- The ledger, version 1. An item's facts never change; its state is the table that holds its row: ready, waiting,
-- delayed, lease or outcome. A change of state is a delete in one table and an insert in another, as on PostgreSQL.
--
-- Differences from PostgreSQL: times are whole microseconds since 1970, booleans are 0 and 1, JSON is text. There are
-- no count deltas (with one writer at a time, totals are updated directly), no receipts and no claim numbers (a local
-- file does not lose answers). Ids that other processes may have cached are never reused (autoincrement).

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
    idempotency_key text,
    -- Active, and there are workers, but none of them claims its items: it keeps no slots in shared lanes.
    idle         integer not null default 0,
    -- What is still to be done to its lanes, and the cursor of that, a JSON list: see bulk.py.
    lane_work    text check (lane_work in ('release', 'readmit')),
    lane_work_cursor   text
) strict;
create index run_active on run (no) where state = 'active';
create index run_lane_work on run (no) where lane_work is not null;
-- One run for one idempotency key: a slot of a schedule, a member of a collection.
create unique index run_idempotency_key on run (idempotency_key)
    where idempotency_key is not null and state <> 'removed';

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
    -- If given, lanes of hosts on this machine have this limit and no delay.
    lane_loopback_limit integer,
    unique (run, name)
) strict;

-- Notes of callers about a run: whether its list was stored completely, which process called its hooks.
create table run_note (
    run   integer not null references run (no),
    name  text not null,
    value text not null,
    at    integer not null,
    primary key (run, name)
) strict, without rowid;

-- priority_min, priority_max: bounds for all items it ever had. When the queues of a run have different priorities, a
-- claim compares their first items.
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

-- Facts. Ids come from `counter`, so that the ids of a removed run are not reused: a lease is (item, epoch), and a
-- worker that was suspended during the removal must not commit to another run's item.
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
    payload      text,
    -- What is sent besides a plain GET; secrets by name.
    request      text,
    -- How many items led to it: 0 for those that a run starts with.
    depth        integer not null default 0
) strict;
create unique index item_key on item (stage, key_hash);
-- A run's items are those of its queues: for lists, and for removing it.
create index item_queue on item (queue);
-- For the lanes of a run, and the items of a lane.
create index item_lane on item (run, lane) where lane is not null;
-- For the items that an item enqueued.
create index item_parent on item (parent) where parent is not null;

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

-- Waiting for a slot of their lane. The run is part of the key, so that the rows of a paused run are never read.
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
-- For lists, and for changes of a whole run.
create index waiting_queue on waiting (queue, item);

-- Not claimable before due_at. slotted: the item keeps a slot of its lane meanwhile.
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
    reason   text not null check (reason in ('not_before', 'retry', 'throttled', 'egress', 'lane'))
) strict;
create index delayed_due on delayed (due_at);
-- For lists, and for changes of a whole run.
create index delayed_queue on delayed (queue);
-- For an operator who lifts a block or shortens a delay, and for the counts of a lane.
create index delayed_lane on delayed (lane, slotted) where lane is not null;

-- No index on worker: leases are few, and only the reaper searches by worker.
-- paced: its lane had a delay when it was claimed, so its worker reserves a start. started_at: when the start was
-- reserved or reported.
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
    state      text not null check (state in ('done', 'dead', 'skipped', 'cancelled')),
    outcome    text not null,
    error      text,
    detail     text,
    -- The group of a dead item; null until upkeep has found it.
    failure    integer
) strict;
create index outcome_not_done on outcome (run, state, item) where state <> 'done';
create index outcome_ungrouped on outcome (run, item) where state = 'dead' and failure is null;
create index outcome_failure on outcome (failure, item) where state = 'dead' and failure is not null;

-- Groups of dead items: equal stage, outcome, host, and shape of the message (model/failures.py). items: how many there
-- are now. item, error: of the one that died last.
create table failure_group (
    id       integer primary key autoincrement,
    run      integer not null,
    stage    integer not null,
    outcome  text not null,
    host     text not null,
    shape    text not null,
    items    integer not null default 0,
    first_at integer not null,
    last_at  integer not null,
    item     integer not null default 0,
    error    text not null default '',
    muted_by text,
    muted_at integer,
    unique (run, stage, outcome, host, shape)
) strict;
create index failure_group_last on failure_group (run, last_at, id);

-- How many items of a group died per minute; kept for some hours.
create table failure_minute (
    failure integer not null,
    minute  integer not null,
    items   integer not null,
    primary key (failure, minute)
) strict, without rowid;
create index failure_minute_old on failure_minute (minute);
create index outcome_dead on outcome (run, ended_at) where state = 'dead';

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
create index attempt_failed on attempt (run, ended_at) where error is not null;

-- Records may be large, so the table has rowids and the primary key is a small index.
create table result (
    run    integer not null,
    item   integer not null,
    n      integer not null,
    record text not null,
    -- Only of a record with a key. key_space: the run in which the key is unique, or 0: the hash contains the scraper.
    -- first_run, changed_run: the run that stored the key first, and the last one whose record was a different one.
    record_key  text,
    key_space   integer,
    key_hash    blob,
    first_run   integer,
    changed_run integer,
    primary key (run, item, n)
) strict;
create unique index result_key on result (key_space, key_hash) where key_hash is not null;

-- What stored results, in the order of the commits: one row per transaction, run and stage, so that a reader with a
-- cursor gets what was added since without an index on every result. With one writer at a time a number is assigned in
-- the order of the commits; numbers of a removed run are not reused. items: JSON list, ascending. replaced: the items
-- had results before.
create table result_change (
    position integer primary key autoincrement,
    run      integer not null,
    stage    integer not null,
    at       integer not null,
    records  integer not null,
    replaced integer not null default 0,
    items    text not null
) strict;
create index result_change_run on result_change (run);
create index result_change_replaced on result_change (position) where replaced;

-- Cursors into result_change by name: of sinks, and of exports that continue. Rows before `position` are done; of the
-- row at `position` the records up to (item, n), or all of them when item is 0.
create table result_cursor (
    name          text primary key,
    position      integer not null default 0,
    item          integer not null default 0,
    n             integer not null default 0,
    delivered     integer not null default 0,
    created_at    integer not null,
    moved_at      integer,
    failing_since integer,
    last_error    text,
    state         text  -- what the owner of the cursor keeps with it
) strict, without rowid;

-- Records that a sink refused one by one, while it took others.
create table dead_letter (
    cursor text not null,
    run    integer not null,
    item   integer not null,
    n      integer not null,
    at     integer not null,
    reason text not null,
    primary key (cursor, run, item, n)
) strict, without rowid;
create index dead_letter_run on dead_letter (run);

-- A lane of run 0 is shared by all runs. taken: its items in ready, lease, or delayed with a slot. unstarted: those of
-- them without a reserved or reported start. slots_granted, slots_wanted: slots that requests from other lanes' items
-- hold and wait for (see host_slot); both reduce the number of items. next_at: the earliest start that can be reserved
-- by the worker next_by, which has reserved the starts since run_from; for other workers it is `handover` microseconds
-- later, because next_by may send that late. delay_* is the effective delay: own_delay_*, declared by a stage, raised
-- to the floor (robots.txt's crawl-delay), or what an operator set (delay_fixed).
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
    slots_granted integer not null default 0,
    slots_wanted  integer not null default 0,
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
    -- The stage whose policy it has; stages of newer runs override those of older ones.
    declared_by   integer not null default 0,
    key           text not null,
    blocked_why   text,
    floor_why     text,
    unique (run, key)
) strict;

-- ahead: how many items without a start a lane with a delay may have admitted. allowance: how many more a lane admits
-- now. due: when; 100 ms before the next start, which is enough for a claim and a reservation.
create view lane_room as
select l.id, l.run, 1 + cast(min(1e6, 0.1 / l.delay_max) as integer) as ahead,
       case when l.paused or l.waiting = 0 then 0
            when l.delay_max > 0
            then max(0, min(l.max_active - l.taken - l.slots_granted - l.slots_wanted,
                            1 + cast(min(1e6, 0.1 / l.delay_max) as integer) - l.unstarted))
            else max(0, l.max_active - l.taken - l.slots_granted - l.slots_wanted) end as allowance,
       max(case when l.delay_max > 0 then coalesce(l.next_at, 0) - 100000 else 0 end, coalesce(l.blocked_until, 0)) as due
from lane l;

-- The lanes that will take longest, some hundreds of each run and of the shared ones (run 0). Upkeep ranks them every
-- few seconds: an index on counters that every claim changes would cost more.
create table slow_lane (
    lane    integer primary key,
    run     integer not null,
    seconds real not null
) strict;
create index slow_lane_rank on slow_lane (run, seconds, lane);

-- Slots in a host's lane for requests of items of other lanes: redirects, APIs, robots.txt. A slot that is not granted
-- waits and counts in the lane's `slots_wanted`, then in `slots_granted`. Slots of a dead worker are released, as its
-- leases are.
create table host_slot (
    id      integer primary key,
    lane    integer not null,
    since   integer not null,
    worker  integer not null,
    granted integer not null
) strict;
create index host_slot_lane on host_slot (lane, since, id);

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
    -- The report sent with its last heartbeat, and when. A claim counts as a heartbeat, but carries no report.
    report        text,
    reported_at   integer,
    started_at    integer not null,
    heartbeat_at  integer not null,
    ended_at      integer
) strict;
create index worker_present on worker (no) where state in ('live', 'draining');

-- Pools of exits (proxies, tokens, Tor). Everything that changes a pool's exits happens in the order of `changed_at`, the
-- time of the last change of a state or a block in it, so that a reader gets what changed since. listed: how many of
-- its exits are in the list of a member. left_at: when its last member left.
create table exit_pool (
    name       text primary key,
    kind       text not null,
    listed     integer not null default 0,
    changed_at integer not null default 0,
    left_at    integer
) strict, without rowid;

-- An exit, known by its key (a fingerprint) and a label without secrets. state: what was set, `until` then; a ban that
-- is over means a trial, a rest that is over means good. changed_at: when that changed last. unlisted_at: it is in the
-- list of no member since then.
create table exit (
    id              integer primary key,
    pool            text not null,
    key             text not null,
    label           text not null,
    state           text not null default 'good' check (state in ('good', 'banned', 'resting')),
    until           integer,
    why             text not null default '',
    set_by          text not null default '',
    trial_by        integer,
    trial_until     integer,
    changed_at      integer,
    succeeded       integer not null default 0,
    failed          integer not null default 0,
    failures_in_row integer not null default 0,
    error           text not null default '',
    used_at         integer,
    unlisted_at     integer,
    unique (pool, key)
) strict;
create index exit_listed on exit (pool, label, key) where unlisted_at is null;
create index exit_not_good on exit (pool, label, key) where unlisted_at is null and state <> 'good';
create index exit_changed on exit (pool, changed_at) where changed_at is not null;
create index exit_unlisted on exit (unlisted_at) where unlisted_at is not null;

-- Hosts that have blocked an exit; others have no row.
create table exit_host (
    exit          integer not null,
    host          text not null,
    pool          text not null,
    succeeded     integer not null,
    blocked       integer not null,
    blocks_in_row integer not null,
    blocked_until integer,
    error         text not null,
    used_at       integer not null,
    changed_at    integer,
    primary key (exit, host)
) strict, without rowid;
create index exit_host_changed on exit_host (pool, changed_at) where changed_at is not null;
create index exit_host_blocked on exit_host (pool, blocked_until) where blocked_until is not null;
create index exit_host_used on exit_host (used_at);

-- The exits that members list: equal lists are stored once. keys: JSON list, ascending.
create table exit_list (
    pool text not null,
    name text not null,
    keys text not null,
    primary key (pool, name)
) strict;

-- The workers that use a pool; those that have ended do not count. reported: the number of its last report.
create table exit_member (
    pool     text not null,
    worker   integer not null,
    list     text not null default '',
    reported integer not null default 0,
    primary key (pool, worker)
) strict, without rowid;

create table queue_count (
    queue      integer primary key,
    ready      integer not null default 0,
    waiting    integer not null default 0,
    delayed    integer not null default 0,
    leased     integer not null default 0,
    done       integer not null default 0,
    dead       integer not null default 0,
    skipped    integer not null default 0,
    cancelled  integer not null default 0,
    results    integer not null default 0,
    duplicates integer not null default 0,
    -- When an attempt on one of its items last ended, whatever the outcome.
    moved_at   integer,
    -- Records with a key: stored first, replacing one with other or with the same content, not stored.
    new_records       integer not null default 0,
    changed_records   integer not null default 0,
    unchanged_records integer not null default 0,
    dropped_records   integer not null default 0
) strict;

-- What each worker finished per minute: rates, progress, "completed in the last hour".
create table minute_count (
    minute    integer not null,
    queue     integer not null,
    worker    integer not null,
    done      integer not null default 0,
    dead      integer not null default 0,
    skipped   integer not null default 0,
    retried   integer not null default 0,
    throttled integer not null default 0,
    results   integer not null default 0,
    seconds   real not null default 0,
    primary key (minute, queue, worker)
) strict, without rowid;
create index minute_count_queue on minute_count (queue);

-- The history of a run, in steps of a minute and, for what is older than two days, of an hour: `step` is in seconds.
-- Attempts that ended, with histograms of their waits and their work (JSON lists; see model/latency.py).
create table run_activity (
    run       integer not null,
    step      integer not null,
    at        integer not null,
    done      integer not null default 0,
    dead      integer not null default 0,
    skipped   integer not null default 0,
    retried   integer not null default 0,
    throttled integer not null default 0,
    results   integer not null default 0,
    seconds   real not null default 0,
    waits     text not null default '[]',
    works     text not null default '[]',
    primary key (run, step, at)
) strict, without rowid;

-- What handlers have counted, by name. A row for each worker, so that workers do not wait for each other.
create table author_count (
    run    integer not null,
    worker integer not null,
    name   text not null,
    number integer not null,
    primary key (run, worker, name)
) strict, without rowid;

-- How a run stood: its items by state, and {"cause": open items}. Sampled, so rows may be missing.
create table run_state (
    run         integer not null,
    step        integer not null,
    at          integer not null,
    ready       integer not null,
    waiting     integer not null,
    delayed     integer not null,
    leased      integer not null,
    done        integer not null,
    dead        integer not null,
    skipped     integer not null,
    cancelled   integer not null,
    waiting_for text not null,
    primary key (run, step, at)
) strict, without rowid;

create table setting (
    version integer primary key,
    scope   text not null,
    value   text not null,
    set_by  text not null,
    set_at  integer not null
) strict;
create index setting_scope on setting (scope, version);

-- Locks for work that one of many processes does once: a slot of a schedule, the delivery of an alert.
create table lock (
    name        text primary key,
    owner       text not null,
    acquired_at integer not null,
    expires_at  integer not null,
    finished_at integer,
    value       text not null default '{}'
) strict, without rowid;

-- Processes that supervise workers on a machine. process: which process has the pid, as it may be used again.
create table worker_pool (
    id         text primary key,
    scraper    text not null,
    run_id     text not null,
    node       text not null,
    pid        integer not null,
    process    text not null,
    logs       text not null,
    started_by text not null,
    workers    integer not null default 0,
    wanted     integer not null,
    stopping   integer not null default 0,
    why        text not null default '',
    started_at integer not null,
    seen_at    integer not null,
    ended_at   integer
) strict, without rowid;

-- Budgets of calls that workers share: of an exit and a kind of call. Times are seconds since 1970 by the ledger's clock.
-- calls, seconds: the policy. The others are what the site said: `remaining` calls were left when it answered a request
-- that was sent at `sent_at`; its window ends between reset_from and reset_at. A row without a resource is the pause of a
-- whole exit.
create table budget (
    id          integer primary key,
    pool        text not null,
    key         text not null,
    resource    text not null,
    calls       integer,
    seconds     real not null default 3600,
    site_limit  integer,
    remaining   integer,
    sent_at     real,
    reset_from  real,
    reset_at    real,
    rests_until real,
    used_at     real not null default 0,
    unique (pool, key, resource)
) strict;

-- Calls that were granted, and not returned. ends_at: none of them reaches the site later. settled: all are answered.
create table budget_grant (
    id         integer primary key,
    budget     integer not null references budget (id),
    calls      integer not null,
    granted_at real not null,
    expires_at real not null,
    ends_at    real not null,
    settled    integer not null default 0
) strict;
create index budget_grant_end on budget_grant (budget, ends_at);

-- Sessions at sites that all workers share, encrypted by them. A removed one keeps its version, so that no version
-- comes back.
create table session (
    scraper   text not null,
    identity  text not null,
    version   integer not null,
    stored_at integer not null,
    content   blob,
    primary key (scraper, identity)
) strict, without rowid;

-- Who may use `shoal serve`. Of tokens and sessions, only the SHA-256 digests of their secrets are stored.
create table access_token (
    id         integer primary key autoincrement,
    name       text not null unique,
    role       text not null check (role in ('viewer', 'operator')),
    digest     blob not null unique,
    created_at integer not null,
    created_by text not null,
    expires_at integer,
    used_at    integer
) strict;

-- idle: how long a session may be unused.
create table access_session (
    digest     blob primary key,
    token      integer not null references access_token (id),
    idle       integer not null,
    created_at integer not null,
    used_at    integer not null,
    expires_at integer not null
) strict, without rowid;
create index access_session_token on access_session (token);
create index access_session_end on access_session (expires_at);

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

-- When each kind of upkeep was last done, so that many workers do it as often as one.
-- cursor: where upkeep in steps continues.
create table tick (
    name  text primary key,
    at    integer not null,
    cursor integer not null default 0
) strict, without rowid;
insert into tick (name, at)
values ('reap', 0), ('lanes', 0), ('tidy', 0), ('bulk', 0), ('sample', 0), ('failures', 0), ('slow_lanes', 0);

-- The offset between the kernel's clock and the ledger's, for each boot of a machine. See SqliteClock.
create table clock (
    boot   text primary key,
    offset integer not null
) strict, without rowid;

-- Plain views for the sqlite3 shell. Ages use the wall clock, because the shell does not have the ledger's clock; the
-- two differ only when the wall clock was set.

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
       c.leased, c.done, c.dead, c.skipped, c.cancelled, c.results, c.duplicates, c.new_records,
       c.changed_records, c.unchanged_records, c.dropped_records
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
                         when 'skipped' then q.skipped else q.cancelled end) as items
from queue_depth q
cross join (select 'ready' as status union all select 'waiting' union all select 'delayed' union all select 'leased'
            union all select 'done' union all select 'dead' union all select 'skipped' union all select 'cancelled') s
group by q.run_id, q.scraper, q.stage, s.status
having items <> 0;

-- S0.17: what each worker completed in the last hour, of which run and stage, most first.
create view completed_by_worker as
select w.id as completed_by, r.id as run_id, r.scraper, g.name as stage, sum(o.state = 'done') as done,
       sum(o.state = 'dead') as dead, sum(o.state = 'skipped') as skipped
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
       o.error as error_message, max(o.tries - 1, 0) as retry_count,
       strftime('%Y-%m-%d %H:%M:%f', o.ended_at / 1e6, 'unixepoch') as failed_at, lower(hex(i.key_hash)) as url_hash
from outcome o
join run r on r.no = o.run
join item i on i.id = o.item
join stage g on g.id = i.stage
where o.state = 'dead';

-- S1.20: the items as the table of an older URL queue. Each part has the run in it, so that a condition on run_id or
-- status reaches the indexes; items are joined last, so that counts do not read them. Higher priorities first, as there.
create view url_work_queue as
select q.item as id, q.run_id, q.scraper as scraper_name, coalesce(i.url, i.key) as url,
       lower(hex(i.key_hash)) as url_hash, -i.priority as priority, q.status, w.id as worker_id,
       strftime('%Y-%m-%d %H:%M:%f', q.claimed_at / 1e6, 'unixepoch') as claimed_at,
       q.retry_count, coalesce(i.max_attempts, g.max_attempts, q.max_attempts) - 1 as max_retries,
       coalesce(q.error, case when q.retry_count > 0 and q.status in ('pending', 'claimed') then
           (select a.error from attempt a where a.item = q.item and a.error is not null
            order by a.epoch desc limit 1) end) as error_message
from (
    select r.id as run_id, r.scraper, r.max_attempts, s.item, 'pending' as status, null as worker, null as claimed_at,
           s.tries as retry_count, null as error
    from run r join queue k on k.run = r.no join ready s on s.queue = k.id where r.state <> 'removed'
    union all
    select r.id, r.scraper, r.max_attempts, s.item, 'pending', null, null, s.tries, null
    from run r join queue k on k.run = r.no join waiting s on s.queue = k.id where r.state <> 'removed'
    union all
    select r.id, r.scraper, r.max_attempts, s.item, 'pending', null, null, s.tries, null
    from run r join queue k on k.run = r.no join delayed s on s.queue = k.id where r.state <> 'removed'
    union all
    select r.id, r.scraper, r.max_attempts, s.item, 'claimed', s.worker, s.claimed_at, s.tries, null
    from run r join lease s on s.run = r.no where r.state <> 'removed'
    union all
    select r.id, r.scraper, r.max_attempts, o.item, 'completed', o.worker, o.claimed_at, max(o.tries - 1, 0), null
    from run r join queue k on k.run = r.no join item j on j.queue = k.id join outcome o on o.item = j.id
    where o.state = 'done' and r.state <> 'removed'
    union all
    select r.id, r.scraper, r.max_attempts, o.item, 'failed', o.worker, o.claimed_at, max(o.tries - 1, 0), o.error
    from run r join outcome o on o.run = r.no where o.state = 'dead' and o.state <> 'done' and r.state <> 'removed'
    union all
    select r.id, r.scraper, r.max_attempts, o.item, o.state, o.worker, o.claimed_at, max(o.tries - 1, 0), o.error
    from run r join outcome o on o.run = r.no
    where o.state in ('skipped', 'cancelled') and o.state <> 'done' and r.state <> 'removed'
) q
left join item i on i.id = q.item
left join stage g on g.id = i.stage
left join worker w on w.no = q.worker;

-- S1.12: the stored records, under run and url_hash.
create view url_results as
select r.id as run_id, r.scraper as scraper_name, g.name as stage, coalesce(i.url, i.key) as url,
       lower(hex(i.key_hash)) as url_hash, x.n, x.record
from run r
join result x on x.run = r.no
join item i on i.id = x.item
join stage g on g.id = i.stage
where r.state <> 'removed';

-- S4.14: each run as a job: running, paused, completed, failed or idle, and how many workers have an item of it. A job
-- has failed when as many of its items are dead as done.
create view jobs as
select r.id as run_id, r.scraper,
       case when r.state = 'paused' then 'paused' when r.state = 'cancelled' then 'idle'
            when r.state = 'finished' then case when sum(c.dead) > 0 and sum(c.dead) >= sum(c.done)
                                                then 'failed' else 'completed' end
            when exists (select 1 from worker w
                         where w.state in ('live', 'draining')
                           and w.heartbeat_at / 1e6 > (julianday('now') - 2440587.5) * 86400 - w.lease_seconds
                           and coalesce(json_extract(w.scope, '$.scraper'), r.scraper) = r.scraper
                           and (json_array_length(w.scope, '$.run_ids') = 0
                                or r.id in (select x.value from json_each(w.scope, '$.run_ids') x)))
                then 'running'
            else 'idle' end as status,
       (select count(distinct s.worker) from lease s where s.run = r.no) as active_workers,
       coalesce(sum(c.ready + c.waiting + c.delayed), 0) as pending, coalesce(sum(c.leased), 0) as processing,
       coalesce(sum(c.done), 0) as completed, coalesce(sum(c.dead), 0) as failed,
       strftime('%Y-%m-%d %H:%M:%f', r.created_at / 1e6, 'unixepoch') as created_at,
       strftime('%Y-%m-%d %H:%M:%f', r.finished_at / 1e6, 'unixepoch') as finished_at
from run r
left join queue k on k.run = r.no
left join queue_count c on c.queue = k.id
where r.state <> 'removed'
group by r.no;

-- Exits of pools: how they are, and at how many hosts they are blocked.
create view egress_health as
select e.pool, p.kind, e.label as exit, e.key,
       case when e.until is null or e.until > n.now then e.state when e.state = 'banned' then 'trial' else 'good' end
           as state,
       strftime('%Y-%m-%d %H:%M:%f', e.until / 1e6, 'unixepoch') as until, e.why, e.set_by, e.succeeded, e.failed,
       e.failures_in_row, e.error,
       (select count(*) from exit_host h where h.exit = e.id and h.blocked_until > n.now) as blocked_at_hosts,
       strftime('%Y-%m-%d %H:%M:%f', e.used_at / 1e6, 'unixepoch') as last_used, e.unlisted_at is null as listed
from exit e join exit_pool p on p.name = e.pool
cross join (select (julianday('now') - 2440587.5) * 86400e6 as now) n;
