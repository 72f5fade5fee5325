-- functions: ba4e87466dda5e4b
-- The ledger, version 1. An item's facts never change; its state is the table that holds its row: ready, waiting,
-- delayed, lease or outcome. A change of state is a delete in one table and an insert in another, so a claim reads
-- claimable rows only, and finished rows are only appended.

create table shoal.run (
    no           int generated always as identity primary key,
    id           text not null unique,
    scraper      text not null,
    state        text not null default 'active'
                 check (state in ('active', 'paused', 'cancelled', 'finished', 'removed')),
    sealed       boolean not null default false,
    settings     json not null,
    code_version text,
    key_version  int not null,
    max_attempts int not null,
    max_rescues  int not null,
    created_at   timestamptz not null,
    changed_at   timestamptz not null,
    finished_at  timestamptz,
    idempotency_key text,
    -- Active, and there are workers, but none of them claims its items: it keeps no slots in shared lanes.
    idle         boolean not null default false,
    -- What is still to be done to its lanes, and the cursor of that: see shoal.apply_lane_work.
    lane_work    text check (lane_work in ('release', 'readmit')),
    lane_work_cursor   bigint[]
);
create index run_active on shoal.run (no) where state = 'active';
create index run_lane_work on shoal.run (no) where lane_work is not null;
-- One run for one idempotency key: a slot of a schedule, a member of a collection.
create unique index run_idempotency_key on shoal.run (idempotency_key)
    where idempotency_key is not null and state <> 'removed';

create table shoal.stage (
    id           int generated always as identity primary key,
    run          int not null references shoal.run (no),
    name         text not null,
    max_attempts int,
    lane_limit   int not null,
    lane_delay_min real not null,
    lane_delay_max real not null,
    lane_ordered boolean not null,
    lane_shared  boolean not null,
    -- If given, lanes of hosts on this machine have this limit and no delay.
    lane_loopback_limit int,
    unique (run, name)
);

-- Notes of callers about a run: whether its list was stored completely, which process called its hooks.
create table shoal.run_note (
    run   int not null references shoal.run (no),
    name  text not null,
    value json not null,
    at    timestamptz not null,
    primary key (run, name)
);

-- priority_min, priority_max: bounds for all items it ever had. When the queues of a run have different priorities, a
-- claim compares their first items.
create table shoal.queue (
    id           int generated always as identity primary key,
    run          int not null,
    stage        int not null references shoal.stage (id),
    partition    text not null,
    priority_min int not null,
    priority_max int not null,
    unique (stage, partition)
);
create index queue_run on shoal.queue (run);

-- Facts. (run, id) keeps a run's rows together, for keyset pages and for removing it.
create sequence shoal.item_id;
create table shoal.item (
    id           bigint not null,
    lane         bigint,
    parent       bigint,
    created_at   timestamptz not null,
    not_before   timestamptz,
    run          int not null,
    stage        int not null,
    queue        int not null,
    priority     int not null,
    max_attempts int,
    key_hash     bytea not null,
    key          text,
    url          text,
    payload      json,
    -- What is sent besides a plain GET; secrets by name.
    request      json,
    -- How many items led to it: 0 for those that a run starts with.
    depth        smallint not null default 0,
    primary key (run, id)
);
create unique index item_key on shoal.item (stage, key_hash);
-- For lists of a stage or a partition.
create index item_queue on shoal.item (queue, id);
-- For the lanes of a run, and the items of a lane.
create index item_lane on shoal.item (run, lane, id) where lane is not null;
-- For the items that an item enqueued.
create index item_parent on shoal.item (run, parent, id) where parent is not null;

-- Claimable rows and nothing else. The primary key is the claim order.
create table shoal.ready (
    item     bigint not null,
    lane     bigint,
    since    timestamptz not null,
    queue    int not null,
    priority int not null,
    epoch    int not null,
    tries    smallint not null,
    rescues  smallint not null,
    primary key (queue, priority, item)
);

-- Waiting for a slot of their lane. The run is part of the key, so that the rows of a paused run are never read.
create table shoal.waiting (
    item     bigint not null,
    lane     bigint not null,
    since    timestamptz not null,
    run      int not null,
    queue    int not null,
    priority int not null,
    epoch    int not null,
    tries    smallint not null,
    rescues  smallint not null,
    primary key (lane, run, priority, item)
);
-- For lists, and for changes of a whole run.
create index waiting_queue on shoal.waiting (queue, item);

-- Not claimable before due_at. slotted: the item keeps a slot of its lane meanwhile.
create table shoal.delayed (
    item     bigint primary key,
    lane     bigint,
    due_at   timestamptz not null,
    since    timestamptz not null,
    run      int not null,
    queue    int not null,
    priority int not null,
    epoch    int not null,
    tries    smallint not null,
    rescues  smallint not null,
    slotted  boolean not null,
    reason   text not null check (reason in ('not_before', 'retry', 'throttled', 'egress', 'lane'))
);
create index delayed_due on shoal.delayed (due_at);
-- For lists, and for changes of a whole run.
create index delayed_queue on shoal.delayed (queue, item);
-- For an operator who lifts a block or shortens a delay, and for the counts of a lane.
create index delayed_lane on shoal.delayed (lane, slotted) where lane is not null;

-- No index on worker: leases are few, and only the reaper searches by worker.
-- paced: its lane had a delay when it was claimed, so its worker reserves a start. started_at: when the start was
-- reserved or reported.
create table shoal.lease (
    item       bigint primary key,
    lane       bigint,
    claimed_at timestamptz not null,
    started_at timestamptz,
    epoch      int not null,
    worker     int not null,
    claim_no   int not null,
    run        int not null,
    queue      int not null,
    priority   int not null,
    tries      smallint not null,
    rescues    smallint not null,
    paced      boolean not null
);
-- The end of an item, with its last attempt. Earlier attempts are in shoal.attempt.
create table shoal.outcome (
    item       bigint not null,
    claimed_at timestamptz not null,
    ended_at   timestamptz not null,
    run        int not null,
    queue      int not null,
    epoch      int not null,
    worker     int,
    seconds    real not null,
    tries      smallint not null,
    rescues    smallint not null,
    state      text not null check (state in ('done', 'dead', 'skipped', 'cancelled')),
    outcome    text not null,
    error      text,
    detail     json,
    -- The group of a dead item; null until upkeep has found it.
    failure    int,
    primary key (run, item)
);
create index outcome_not_done on shoal.outcome (run, state, item) where state <> 'done';
create index outcome_dead on shoal.outcome (run, ended_at) where state = 'dead';
create index outcome_time on shoal.outcome using brin (ended_at);
create index outcome_ungrouped on shoal.outcome (run, item) where state = 'dead' and failure is null;
create index outcome_failure on shoal.outcome (failure, item) where state = 'dead' and failure is not null;

-- Groups of dead items: equal stage, outcome, host, and shape of the message (model/failures.py). items: how many there
-- are now. item, error: of the one that died last.
create table shoal.failure_group (
    id       int generated always as identity primary key,
    run      int not null,
    stage    int not null,
    outcome  text collate "C" not null,
    host     text collate "C" not null,
    shape    text collate "C" not null,
    items    bigint not null default 0,
    first_at timestamptz not null,
    last_at  timestamptz not null,
    item     bigint not null default 0,
    error    text not null default '',
    muted_by text,
    muted_at timestamptz,
    unique (run, stage, outcome, host, shape)
);
create index failure_group_last on shoal.failure_group (run, last_at, id);

-- How many items of a group died per minute; kept for some hours.
create table shoal.failure_minute (
    failure int not null,
    minute  timestamptz not null,
    items   int not null,
    primary key (failure, minute)
);
create index failure_minute_old on shoal.failure_minute (minute);

create table shoal.attempt (
    item       bigint not null,
    claimed_at timestamptz not null,
    ended_at   timestamptz not null,
    run        int not null,
    epoch      int not null,
    worker     int,
    seconds    real not null,
    outcome    text not null,
    error      text,
    detail     json,
    primary key (run, item, epoch)
);
create index attempt_failed on shoal.attempt (run, ended_at) where error is not null;

create table shoal.result (
    item   bigint not null,
    run    int not null,
    n      int not null,
    record json not null,
    -- Only of a record with a key. key_space: the run in which the key is unique, or 0: the hash contains the scraper.
    -- first_run, changed_run: the run that stored the key first, and the last one whose record was a different one.
    record_key  text,
    key_space   int,
    key_hash    bytea,
    first_run   int,
    changed_run int,
    primary key (run, item, n)
);
create unique index result_key on shoal.result (key_space, key_hash) where key_hash is not null;

-- What stored results: one row per transaction, run and stage, so that a reader with a cursor gets what was added since
-- without an index on every result. Ids are not in the order of the commits, so a reader could skip a transaction that
-- commits late: rows get their position later, from shoal.number_changes. items: ascending. replaced: the items had
-- results before.
create sequence shoal.change_position;
create table shoal.result_change (
    id       bigint generated always as identity primary key,
    position bigint,
    at       timestamptz not null,
    run      int not null,
    stage    int not null,
    records  int not null,
    replaced boolean not null default false,
    items    bigint[] not null
);
create unique index result_change_position on shoal.result_change (position) where position is not null;
create index result_change_new on shoal.result_change (id) where position is null;
create index result_change_run on shoal.result_change (run, id);
create index result_change_replaced on shoal.result_change (position) where replaced;

-- Cursors into result_change by name: of sinks, and of exports that continue. Rows before `position` are done; of the
-- row at `position` the records up to (item, n), or all of them when item is 0.
create table shoal.result_cursor (
    name          text collate "C" primary key,
    position      bigint not null default 0,
    item          bigint not null default 0,
    n             int not null default 0,
    delivered     bigint not null default 0,
    created_at    timestamptz not null,
    moved_at      timestamptz,
    failing_since timestamptz,
    last_error    text,
    state         text  -- what the owner of the cursor keeps with it
);

-- Records that a sink refused one by one, while it took others.
create table shoal.dead_letter (
    cursor text collate "C" not null,
    run    int not null,
    item   bigint not null,
    n      int not null,
    at     timestamptz not null,
    reason text not null,
    primary key (cursor, run, item, n)
);
create index dead_letter_run on shoal.dead_letter (run);

-- A lane of run 0 is shared by all runs. taken: its items in ready, lease, or delayed with a slot. unstarted: those of
-- them without a reserved or reported start. slots_granted, slots_wanted: slots that requests from other lanes' items
-- hold and wait for (see host_slot); both reduce the number of items. next_at: the earliest start that can be reserved
-- by the worker next_by, which has reserved the starts since run_from; for other workers it is `handover` seconds
-- later, because next_by may send that late. delay_* is the effective delay: own_delay_*, declared by a stage, raised
-- to the floor (robots.txt's crawl-delay), or what an operator set (delay_fixed).
create table shoal.lane (
    id            bigint generated always as identity primary key,
    next_at       timestamptz,
    blocked_until timestamptz,
    run           int not null,
    max_active    int not null,
    delay_min     real not null,
    delay_max     real not null,
    taken         int not null default 0,
    unstarted     int not null default 0,
    waiting       int not null default 0,
    slots_granted int not null default 0,
    slots_wanted  int not null default 0,
    next_by       int,
    run_from      timestamptz,
    handover      real not null default 0,
    ordered       boolean not null,
    paused        boolean not null default false,
    by_operator   boolean not null default false,
    delay_fixed   boolean not null default false,
    own_delay_min real not null,
    own_delay_max real not null,
    floor         double precision not null default 0,
    -- The stage whose policy it has; stages of newer runs override those of older ones.
    declared_by   int not null default 0,
    key           text collate "C" not null,
    blocked_why   text,
    floor_why     text,
    unique (run, key)
);

-- The lanes that will take longest, some hundreds of each run and of the shared ones (run 0). Upkeep ranks them every
-- few seconds: an index on counters that every claim changes would cost more.
create table shoal.slow_lane (
    lane    bigint primary key,
    run     int not null,
    seconds double precision not null
);
create index slow_lane_rank on shoal.slow_lane (run, seconds, lane);

-- Slots in a host's lane for requests of items of other lanes: redirects, APIs, robots.txt. A slot that is not granted
-- waits and counts in the lane's `slots_wanted`, then in `slots_granted`. Slots of a dead worker are released, as its
-- leases are.
create table shoal.host_slot (
    id      bigint primary key,
    lane    bigint not null,
    since   timestamptz not null,
    worker  int not null,
    granted boolean not null
);
create index host_slot_waiting on shoal.host_slot (lane, since, id) where not granted;

create table shoal.worker (
    no            int generated always as identity primary key,
    id            text not null unique,
    node          text not null,
    pid           int not null,
    version       text not null,
    code          text,
    state         text not null default 'live' check (state in ('live', 'draining', 'stopped', 'lost')),
    lease_seconds double precision not null,
    scope         json not null,
    -- The report sent with its last heartbeat, and when. A claim counts as a heartbeat, but carries no report.
    report        json,
    reported_at   timestamptz,
    started_at    timestamptz not null,
    heartbeat_at  timestamptz not null,
    ended_at      timestamptz
);
create index worker_present on shoal.worker (heartbeat_at) where state in ('live', 'draining');

-- Pools of exits (proxies, tokens, Tor). Everything that changes a pool's exits happens in the order of `changed_at`, the
-- time of the last change of a state or a block in it, so that a reader gets what changed since. listed: how many of
-- its exits are in the list of a member. left_at: when its last member left.
create table shoal.exit_pool (
    name       text collate "C" primary key,
    kind       text not null,
    listed     int not null default 0,
    changed_at timestamptz not null default 'epoch',
    left_at    timestamptz
);

-- An exit, known by its key (a fingerprint) and a label without secrets. state: what was set, `until` then; a ban that
-- is over means a trial, a rest that is over means good. changed_at: when that changed last. unlisted_at: it is in the
-- list of no member since then.
create table shoal.exit (
    id              bigint generated always as identity primary key,
    pool            text collate "C" not null,
    key             text collate "C" not null,
    label           text collate "C" not null,
    state           text not null default 'good' check (state in ('good', 'banned', 'resting')),
    until           timestamptz,
    why             text not null default '',
    set_by          text not null default '',
    trial_by        int,
    trial_until     timestamptz,
    changed_at      timestamptz,
    succeeded       bigint not null default 0,
    failed          bigint not null default 0,
    failures_in_row int not null default 0,
    error           text not null default '',
    used_at         timestamptz,
    unlisted_at     timestamptz,
    unique (pool, key)
);
create index exit_listed on shoal.exit (pool, label, key) where unlisted_at is null;
create index exit_not_good on shoal.exit (pool, label, key) where unlisted_at is null and state <> 'good';
create index exit_changed on shoal.exit (pool, changed_at) where changed_at is not null;
create index exit_unlisted on shoal.exit (unlisted_at) where unlisted_at is not null;

-- Hosts that have blocked an exit; others have no row.
create table shoal.exit_host (
    exit          bigint not null,
    host          text collate "C" not null,
    pool          text collate "C" not null,
    succeeded     bigint not null,
    blocked       bigint not null,
    blocks_in_row int not null,
    blocked_until timestamptz,
    error         text not null,
    used_at       timestamptz not null,
    changed_at    timestamptz,
    primary key (exit, host)
);
create index exit_host_changed on shoal.exit_host (pool, changed_at) where changed_at is not null;
create index exit_host_blocked on shoal.exit_host (pool, blocked_until) where blocked_until is not null;
create index exit_host_used on shoal.exit_host (used_at);

-- The exits that members list: equal lists are stored once. keys: ascending.
create table shoal.exit_list (
    pool text collate "C" not null,
    name text collate "C" not null,
    keys text[] not null,
    primary key (pool, name)
);

-- The workers that use a pool; those that have ended do not count. reported: the number of its last report.
create table shoal.exit_member (
    pool     text collate "C" not null,
    worker   int not null,
    list     text not null default '',
    reported bigint not null default 0,
    primary key (pool, worker)
);

-- Claims that their callers abandoned: they must not take anything if they reach the server later.
create table shoal.void_claim (
    worker   int not null,
    claim_no int not null,
    at       timestamptz not null,
    primary key (worker, claim_no)
);

-- Counts are written as deltas in the transaction that moves the rows, and folded into totals later.
create table shoal.count_delta (
    id         bigint generated always as identity primary key,
    at         timestamptz not null,
    queue      int not null,
    worker     int,
    ready      int not null default 0,
    waiting    int not null default 0,
    delayed    int not null default 0,
    leased     int not null default 0,
    done       int not null default 0,
    dead       int not null default 0,
    skipped    int not null default 0,
    cancelled  int not null default 0,
    results    int not null default 0,
    duplicates int not null default 0,
    retried    int not null default 0,
    throttled  int not null default 0,
    seconds    real not null default 0,
    new_records       int not null default 0,
    changed_records   int not null default 0,
    unchanged_records int not null default 0,
    dropped_records   int not null default 0,
    -- Of each attempt that a commit ended, the buckets of its wait and its work: see model/latency.py.
    latencies  smallint[]
);

create table shoal.queue_count (
    queue      int primary key,
    ready      bigint not null default 0,
    waiting    bigint not null default 0,
    delayed    bigint not null default 0,
    leased     bigint not null default 0,
    done       bigint not null default 0,
    dead       bigint not null default 0,
    skipped    bigint not null default 0,
    cancelled  bigint not null default 0,
    results    bigint not null default 0,
    duplicates bigint not null default 0,
    -- When an attempt on one of its items last ended, whatever the outcome.
    moved_at   timestamptz,
    -- Records with a key: stored first, replacing one with other or with the same content, not stored.
    new_records       bigint not null default 0,
    changed_records   bigint not null default 0,
    unchanged_records bigint not null default 0,
    dropped_records   bigint not null default 0
);

-- What each worker finished per minute: rates, progress, "completed in the last hour".
create table shoal.minute_count (
    minute    timestamptz not null,
    queue     int not null,
    worker    int not null,
    done      int not null,
    dead      int not null,
    skipped   int not null,
    retried   int not null,
    throttled int not null,
    results   int not null,
    seconds   real not null,
    primary key (minute, queue, worker)
);
create index minute_count_queue on shoal.minute_count (queue);

-- The history of a run, in steps of a minute and, for what is older than two days, of an hour: `step` is in seconds.
-- Attempts that ended, with histograms of their waits and their work (see model/latency.py).
create table shoal.run_activity (
    run       int not null,
    step      int not null,
    at        timestamptz not null,
    done      int not null default 0,
    dead      int not null default 0,
    skipped   int not null default 0,
    retried   int not null default 0,
    throttled int not null default 0,
    results   int not null default 0,
    seconds   double precision not null default 0,
    waits     int[] not null default '{}',
    works     int[] not null default '{}',
    primary key (run, step, at)
);

-- What handlers have counted, by name. A row for each worker, so that workers do not wait for each other.
create table shoal.author_count (
    run    int not null,
    worker int not null,
    name   text not null,
    number bigint not null,
    primary key (run, worker, name)
);

-- How a run stood: its items by state, and {"cause": open items}. Sampled, so rows may be missing.
create table shoal.run_state (
    run         int not null,
    step        int not null,
    at          timestamptz not null,
    ready       bigint not null,
    waiting     bigint not null,
    delayed     bigint not null,
    leased      bigint not null,
    done        bigint not null,
    dead        bigint not null,
    skipped     bigint not null,
    cancelled   bigint not null,
    waiting_for json not null,
    primary key (run, step, at)
);

create table shoal.setting (
    version bigint generated always as identity primary key,
    scope   text not null,
    value   json not null,
    set_by  text not null,
    set_at  timestamptz not null
);
create index setting_scope on shoal.setting (scope, version);

-- Locks for work that one of many processes does once: a slot of a schedule, the delivery of an alert.
create table shoal.lock (
    name        text collate "C" primary key,
    owner       text not null,
    acquired_at timestamptz not null,
    expires_at  timestamptz not null,
    finished_at timestamptz,
    value       json not null default '{}'
);

-- Processes that supervise workers on a machine. process: which process has the pid, as it may be used again.
create table shoal.worker_pool (
    id         text primary key,
    scraper    text not null,
    run_id     text not null,
    node       text not null,
    pid        int not null,
    process    text not null,
    logs       text not null,
    started_by text not null,
    workers    int not null default 0,
    wanted     int not null,
    stopping   int not null default 0,
    why        text not null default '',
    started_at timestamptz not null,
    seen_at    timestamptz not null,
    ended_at   timestamptz
);

-- Budgets of calls that workers share: of an exit and a kind of call. Times are seconds since 1970 by the ledger's clock.
-- calls, seconds: the policy. The others are what the site said: `remaining` calls were left when it answered a request
-- that was sent at `sent_at`; its window ends between reset_from and reset_at. A row without a resource is the pause of a
-- whole exit.
create table shoal.budget (
    id          bigint generated always as identity primary key,
    pool        text not null,
    key         text not null,
    resource    text not null,
    calls       int,
    seconds     double precision not null default 3600,
    site_limit  int,
    remaining   int,
    sent_at     double precision,
    reset_from  double precision,
    reset_at    double precision,
    rests_until double precision,
    used_at     double precision not null default 0,
    unique (pool, key, resource)
);

-- Calls that were granted, and not returned. ends_at: none of them reaches the site later. settled: all are answered.
create table shoal.budget_grant (
    id         bigint primary key,
    budget     bigint not null references shoal.budget (id),
    calls      int not null,
    granted_at double precision not null,
    expires_at double precision not null,
    ends_at    double precision not null,
    settled    boolean not null default false
);
create index budget_grant_end on shoal.budget_grant (budget, ends_at);

-- Sessions at sites that all workers share, encrypted by them. A removed one keeps its version, so that no version
-- comes back.
create table shoal.session (
    scraper   text not null,
    identity  text not null,
    version   bigint not null,
    stored_at timestamptz not null,
    content   bytea,
    primary key (scraper, identity)
);

-- Who may use `shoal serve`. Of tokens and sessions, only the SHA-256 digests of their secrets are stored.
create table shoal.access_token (
    id         bigint generated always as identity primary key,
    name       text not null unique,
    role       text not null check (role in ('viewer', 'operator')),
    digest     bytea not null unique,
    created_at timestamptz not null,
    created_by text not null,
    expires_at timestamptz,
    used_at    timestamptz
);

-- idle: how long a session may be unused.
create table shoal.access_session (
    digest     bytea primary key,
    token      bigint not null references shoal.access_token (id) on delete cascade,
    idle       interval not null,
    created_at timestamptz not null,
    used_at    timestamptz not null,
    expires_at timestamptz not null
);
create index access_session_token on shoal.access_session (token);
create index access_session_end on shoal.access_session (expires_at);

create table shoal.event (
    id      bigint generated always as identity primary key,
    at      timestamptz not null,
    run     int,
    actor   text not null,
    action  text not null,
    subject text not null,
    detail  json not null
);
create index event_run on shoal.event (run, id);

-- Answers to calls that may be repeated after a broken connection.
create table shoal.receipt (
    id     uuid primary key,
    at     timestamptz not null,
    answer json not null
);
create index receipt_at on shoal.receipt (at);

-- When each kind of upkeep was last done, so that a thousand workers do it as often as one.
-- cursor: where upkeep in steps continues.
create table shoal.tick (
    name  text primary key,
    at    timestamptz not null,
    cursor bigint not null default 0
);
insert into shoal.tick (name, at) values ('reap', '-infinity'), ('fold', '-infinity'), ('lanes', '-infinity'),
    ('tidy', '-infinity'), ('wake', '-infinity'), ('bulk', '-infinity'), ('failures', '-infinity'),
    ('slow_lanes', '-infinity'), ('sample', '-infinity');

-- Rows of these tables live for seconds: vacuum by count and without pauses, and fill the pages completely.
alter table shoal.ready set (fillfactor = 100, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
alter table shoal.waiting set (fillfactor = 100, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
alter table shoal.delayed set (fillfactor = 100, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
alter table shoal.lease set (fillfactor = 100, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
alter table shoal.count_delta set (fillfactor = 100, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
-- Rows of these tables are updated often: leave room on the page for new versions.
alter table shoal.lane set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
alter table shoal.worker set (fillfactor = 50);
alter table shoal.exit set (fillfactor = 50);
alter table shoal.exit_member set (fillfactor = 50);
alter table shoal.queue_count set (fillfactor = 50);
alter table shoal.run_activity set (fillfactor = 50);
alter table shoal.author_count set (fillfactor = 50);
alter table shoal.tick set (fillfactor = 50);
