-- Plain views for psql.

-- S0.16, S1.23: who holds what, of which run and stage.
create or replace view shoal.active_claims as
select w.id as claimed_by, r.id as run_id, r.scraper, g.name as stage, count(*) as records,
       min(s.claimed_at) as first_start, max(s.claimed_at) as last_claim
from shoal.lease s
join shoal.worker w on w.no = s.worker
join shoal.run r on r.no = s.run
join shoal.queue k on k.id = s.queue
join shoal.stage g on g.id = k.stage
group by w.id, r.no, g.id order by records desc;

-- S0.18: claims older than 30 minutes, oldest first.
create or replace view shoal.stale_claims as
select r.id as run_id, r.scraper, g.name as stage, s.item, coalesce(i.key, i.url) as name, w.id as claimed_by,
       s.claimed_at as started,
       round(extract(epoch from shoal.clock() - s.claimed_at) / 60, 1) as minutes_ago
from shoal.lease s
join shoal.worker w on w.no = s.worker
join shoal.run r on r.no = s.run
join shoal.item i on i.run = s.run and i.id = s.item
join shoal.stage g on g.id = i.stage
where s.claimed_at < shoal.clock() - interval '30 minutes'
order by s.claimed_at;

-- Counts per queue, folded and not yet folded.
create or replace view shoal.queue_depth as
select r.id as run_id, r.scraper, g.name as stage, k.partition, k.id as queue,
       sum(c.ready)::bigint as ready, sum(c.waiting)::bigint as waiting, sum(c.delayed)::bigint as delayed,
       sum(c.leased)::bigint as leased, sum(c.done)::bigint as done, sum(c.dead)::bigint as dead,
       sum(c.skipped)::bigint as skipped, sum(c.cancelled)::bigint as cancelled, sum(c.results)::bigint as results,
       sum(c.duplicates)::bigint as duplicates, sum(c.new_records)::bigint as new_records,
       sum(c.changed_records)::bigint as changed_records, sum(c.unchanged_records)::bigint as unchanged_records,
       sum(c.dropped_records)::bigint as dropped_records
from shoal.run r
join shoal.queue k on k.run = r.no
join shoal.stage g on g.id = k.stage
join (
    select queue, ready, waiting, delayed, leased, done, dead, skipped, cancelled, results, duplicates, new_records,
           changed_records, unchanged_records, dropped_records from shoal.queue_count
    union all
    select queue, ready, waiting, delayed, leased, done, dead, skipped, cancelled, results, duplicates, new_records,
           changed_records, unchanged_records, dropped_records from shoal.count_delta
) c on c.queue = k.id
where r.state <> 'removed'
group by r.id, r.scraper, g.name, k.partition, k.id;

-- S0.19, S3.26: how many items are in which state, per run and stage.
create or replace view shoal.status_counts as
select q.run_id, q.scraper, q.stage, s.status, sum(s.items)::bigint as items
from shoal.queue_depth q
cross join lateral (values ('ready', q.ready), ('waiting', q.waiting), ('delayed', q.delayed), ('leased', q.leased),
                           ('done', q.done), ('dead', q.dead), ('skipped', q.skipped),
                           ('cancelled', q.cancelled)) as s(status, items)
group by q.run_id, q.scraper, q.stage, s.status
having sum(s.items) <> 0;

-- S0.17: what each worker completed in the last hour, of which run and stage, most first. By the server's own now(),
-- which an index can use.
create or replace view shoal.completed_by_worker as
select w.id as completed_by, r.id as run_id, r.scraper, g.name as stage, count(*) filter (where o.state = 'done') as done,
       count(*) filter (where o.state = 'dead') as dead, count(*) filter (where o.state = 'skipped') as skipped
from shoal.outcome o
join shoal.worker w on w.no = o.worker
join shoal.run r on r.no = o.run
join shoal.queue k on k.id = o.queue
join shoal.stage g on g.id = k.stage
where o.ended_at > now() - interval '1 hour' and o.state <> 'cancelled'
group by w.id, r.no, g.id order by done desc;

-- S1.18: what failed, why, and how often it was tried again.
create or replace view shoal.failed_items as
select r.id as run_id, r.scraper, g.name as stage, o.item, coalesce(i.url, i.key) as url, o.outcome,
       o.error as error_message,
       greatest(o.tries - 1, 0) as retry_count, o.ended_at as failed_at, encode(i.key_hash, 'hex') as url_hash
from shoal.outcome o
join shoal.run r on r.no = o.run
join shoal.item i on i.run = o.run and i.id = o.item
join shoal.stage g on g.id = i.stage
where o.state = 'dead';

-- S1.20: the items as the table of an older URL queue. Each part has the run in it, so that a condition on run_id or
-- status reaches the indexes; items are joined last, so that counts do not read them. Higher priorities first, as there.
create or replace view shoal.url_work_queue as
select q.item as id, q.run_id, q.scraper as scraper_name, coalesce(i.url, i.key) as url,
       encode(i.key_hash, 'hex') as url_hash, -i.priority as priority, q.status, w.id as worker_id, q.claimed_at,
       q.retry_count, coalesce(i.max_attempts, g.max_attempts, q.max_attempts) - 1 as max_retries,
       coalesce(q.error, case when q.retry_count > 0 and q.status in ('pending', 'claimed') then
           (select a.error from shoal.attempt a where a.run = q.run and a.item = q.item and a.error is not null
            order by a.epoch desc limit 1) end) as error_message
from (
    select r.no as run, r.id as run_id, r.scraper, r.max_attempts, s.item, 'pending' as status, null::int as worker,
           null::timestamptz as claimed_at, s.tries::int as retry_count, null::text as error
    from shoal.run r join shoal.queue k on k.run = r.no join shoal.ready s on s.queue = k.id where r.state <> 'removed'
    union all
    select r.no, r.id, r.scraper, r.max_attempts, s.item, 'pending', null, null, s.tries, null
    from shoal.run r join shoal.queue k on k.run = r.no join shoal.waiting s on s.queue = k.id where r.state <> 'removed'
    union all
    select r.no, r.id, r.scraper, r.max_attempts, s.item, 'pending', null, null, s.tries, null
    from shoal.run r join shoal.queue k on k.run = r.no join shoal.delayed s on s.queue = k.id where r.state <> 'removed'
    union all
    select r.no, r.id, r.scraper, r.max_attempts, s.item, 'claimed', s.worker, s.claimed_at, s.tries, null
    from shoal.run r join shoal.lease s on s.run = r.no where r.state <> 'removed'
    union all
    select r.no, r.id, r.scraper, r.max_attempts, o.item, 'completed', o.worker, o.claimed_at,
           greatest(o.tries - 1, 0), null
    from shoal.run r join shoal.outcome o on o.run = r.no where o.state = 'done' and r.state <> 'removed'
    union all
    select r.no, r.id, r.scraper, r.max_attempts, o.item, 'failed', o.worker, o.claimed_at, greatest(o.tries - 1, 0),
           o.error
    from shoal.run r join shoal.outcome o on o.run = r.no where o.state = 'dead' and r.state <> 'removed'
    union all
    select r.no, r.id, r.scraper, r.max_attempts, o.item, o.state, o.worker, o.claimed_at, greatest(o.tries - 1, 0),
           o.error
    from shoal.run r join shoal.outcome o on o.run = r.no
    where o.state in ('skipped', 'cancelled') and r.state <> 'removed'
) q
left join shoal.item i on i.run = q.run and i.id = q.item
left join shoal.stage g on g.id = i.stage
left join shoal.worker w on w.no = q.worker;

-- S1.12: the stored records, under run and url_hash.
create or replace view shoal.url_results as
select r.id as run_id, r.scraper as scraper_name, g.name as stage, coalesce(i.url, i.key) as url,
       encode(i.key_hash, 'hex') as url_hash, x.n, x.record
from shoal.run r
join shoal.result x on x.run = r.no
join shoal.item i on i.run = x.run and i.id = x.item
join shoal.stage g on g.id = i.stage
where r.state <> 'removed';

-- S4.14: each run as a job: running, paused, completed, failed or idle, and how many workers have an item of it. A job
-- has failed when as many of its items are dead as done.
create or replace view shoal.jobs as
select r.id as run_id, r.scraper,
       case when r.state = 'paused' then 'paused' when r.state = 'cancelled' then 'idle'
            when r.state = 'finished' then
                case when c.dead > 0 and c.dead >= c.done then 'failed' else 'completed' end
            when exists (select 1 from shoal.worker w
                         where w.state in ('live', 'draining')
                           and w.heartbeat_at > shoal.clock() - shoal.seconds(w.lease_seconds)
                           and coalesce(w.scope->>'scraper', r.scraper) = r.scraper
                           and (json_array_length(w.scope->'run_ids') = 0
                                or r.id in (select x.value from json_array_elements_text(w.scope->'run_ids') x)))
                then 'running'
            else 'idle' end as status,
       (select count(distinct s.worker) from shoal.lease s where s.run = r.no) as active_workers,
       c.pending, c.leased as processing, c.done as completed, c.dead as failed, r.created_at, r.finished_at
from shoal.run r
cross join lateral (
    select coalesce(sum(q.ready + q.waiting + q.delayed), 0)::bigint as pending,
           coalesce(sum(q.leased), 0)::bigint as leased, coalesce(sum(q.done), 0)::bigint as done,
           coalesce(sum(q.dead), 0)::bigint as dead
    from shoal.queue_depth q where q.run_id = r.id
) c
where r.state <> 'removed';

-- Exits of pools: how they are, and at how many hosts they are blocked.
create or replace view shoal.egress_health as
select e.pool, p.kind, e.label as exit, e.key, shoal.exit_state(e.state, e.until, shoal.clock()) as state, e.until, e.why,
       e.set_by, e.succeeded, e.failed, e.failures_in_row, e.error,
       (select count(*) from shoal.exit_host h where h.exit = e.id and h.blocked_until > shoal.clock())
           as blocked_at_hosts,
       e.used_at as last_used, e.unlisted_at is null as listed
from shoal.exit e join shoal.exit_pool p on p.name = e.pool;
