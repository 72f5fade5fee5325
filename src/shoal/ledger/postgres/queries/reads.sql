-- Reads. SQLite has the same names and columns; queries that are equal on both are in ledger/queries/. These differ
-- because here times are timestamps, lists are arrays, counts are totals plus deltas, and the run leads the primary
-- keys of item, outcome, attempt and result. Some call functions, whose plans are pinned (functions/75_lists.sql).

-- name: worker_progress
with finished as (
    select m.worker, m.done, m.dead, m.skipped from shoal.minute_count m join shoal.queue k on k.id = m.queue
    where k.run = $1 and m.minute > shoal.clock() - make_interval(mins => $2)
    union all
    select d.worker, d.done, d.dead, d.skipped from shoal.count_delta d join shoal.queue k on k.id = d.queue
    where k.run = $1 and d.worker is not null
),
totals as (
    select f.worker, sum(f.done)::bigint as done, sum(f.dead)::bigint as dead,
           sum(f.skipped)::bigint as skipped, 0::bigint as leased
    from finished f group by f.worker
    union all
    select s.worker, 0, 0, 0, count(*) from shoal.lease s where s.run = $1 group by s.worker
)
select w.id as worker, sum(t.leased)::bigint as leased, sum(t.done)::bigint as done, sum(t.dead)::bigint as dead,
       sum(t.skipped)::bigint as skipped
from totals t join shoal.worker w on w.no = t.worker
group by w.id order by done desc, w.id

-- name: recent
-- Attempts that ended in the last minutes, and when one last ended or the run last changed its state.
with run_queue as materialized (select k.id from shoal.queue k where k.run = $1),
unfolded as materialized (
    select d.* from shoal.count_delta d where d.worker is not null and d.queue in (select k.id from run_queue k)
),
ends as (
    select m.done, m.dead, m.skipped, m.retried, m.throttled, m.results, m.seconds from shoal.minute_count m
    where m.minute > shoal.clock() - make_interval(mins => $2) and m.queue in (select k.id from run_queue k)
    union all
    select u.done, u.dead, u.skipped, u.retried, u.throttled, u.results, u.seconds from unfolded u
)
select coalesce(sum(e.done), 0)::bigint as done, coalesce(sum(e.dead), 0)::bigint as dead,
       coalesce(sum(e.skipped), 0)::bigint as skipped,
       coalesce(sum(e.retried), 0)::bigint as retried, coalesce(sum(e.throttled), 0)::bigint as throttled,
       coalesce(sum(e.results), 0)::bigint as results, coalesce(sum(e.seconds), 0)::float8 as seconds,
       greatest((select r.changed_at from shoal.run r where r.no = $1), (select max(u.at) from unfolded u),
                (select max(c.moved_at) from shoal.queue_count c where c.queue in (select k.id from run_queue k)))
           as quiet_since
from ends e

-- name: item_views
select * from shoal.item_views($1::int, $2::bigint[])

-- name: find_items
select * from shoal.find_items($1::text, $2::int[], $3::bigint, $4::int)

-- name: find_done
select * from shoal.find_done($1::int, $2::int[], $3::bigint, $4::int, $5::int)

-- name: find_ended
select * from shoal.find_ended($1::int, $2::int[], $3::bigint, $4::int, $5::int, $6::text, $7::text, $8::text)

-- name: find_attempted
select * from shoal.find_attempted($1::int, $2::bigint, $3::int, $4::int, $5::text, $6::text)

-- name: attempts
select a.epoch, w.id as worker, a.claimed_at, a.ended_at, a.seconds, a.outcome, a.error, a.detail
from (
    select t.epoch, t.worker, t.claimed_at, t.ended_at, t.seconds, t.outcome, t.error, t.detail
    from shoal.attempt t where t.run = $1 and t.item = $2
    union all
    select o.epoch, o.worker, o.claimed_at, o.ended_at, o.seconds, o.outcome, o.error, o.detail
    from shoal.outcome o where o.run = $1 and o.item = $2 and (o.epoch > 0 and (o.state <> 'cancelled' or o.worker is not null))
) a left join shoal.worker w on w.no = a.worker
order by a.epoch

-- name: failed
select o.item, g.name as stage, coalesce(i.url, i.key) as url, o.outcome, o.error as error_message,
       greatest(o.tries - 1, 0) as retry_count, o.ended_at as failed_at
from shoal.outcome o
join shoal.item i on i.run = o.run and i.id = o.item
join shoal.stage g on g.id = i.stage
where o.run = $1 and o.state = 'dead' and o.item > $2
order by o.item limit $3

-- name: stale
select s.item, r.id as run_id, coalesce(i.key, i.url) as name, w.id as claimed_by, s.claimed_at as started,
       (extract(epoch from shoal.clock() - s.claimed_at) / 60)::float8 as minutes_ago
from shoal.lease s
join shoal.worker w on w.no = s.worker
join shoal.run r on r.no = s.run
join shoal.item i on i.run = s.run and i.id = s.item
where s.claimed_at <= shoal.clock() - make_interval(secs => $1)
order by s.claimed_at limit $2

-- name: results
-- A window of the run's records, and at most $6 of it, of one stage or of all.
select w.item, w.n, g.name as stage, i.key, i.url, w.record, w.record_key,
       case when w.record_key is null then null when w.first_run = $1 then 'new'
            when w.changed_run = $1 then 'changed' else 'unchanged' end as change,
       case w.key_space when 0 then 'scraper' when $1 then 'run' end as record_scope
from (
    select r.item, r.n, r.record, r.record_key, r.key_space, r.first_run, r.changed_run
    from shoal.result r
    where r.run = $1 and (r.item, r.n) > ($2, $3) order by r.item, r.n limit $4
) w
join shoal.item i on i.run = $1 and i.id = w.item
join shoal.stage g on g.id = i.stage
where $5::int is null or i.stage = $5
order by w.item, w.n limit $6

-- name: results_by_item_key
-- Records without a key, by the keys of their items: of a window of $5 items of a stage, at most $6.
select w.key_hash, r.n, w.id as item, w.key, w.url, r.record
from (
    select i.id, i.key_hash, i.key, i.url from shoal.item i
    where i.stage = $2 and i.key_hash >= $3 order by i.key_hash limit $5
) w
cross join lateral (
    select r.n, r.record from shoal.result r
    where r.run = $1 and r.item = w.id and r.record_key is null and (w.key_hash > $3 or r.n > $4) order by r.n limit $6
) r
order by w.key_hash, r.n limit $6

-- name: result_span
-- Comparisons of whole keys, so that the planner reads the first and the last row of the index; SQLite does so for min
-- and max.
select (select r.item from shoal.result r where (r.run, r.item) > ($1::int, 0) and (r.run, r.item) < ($1 + 1, 0)
        order by r.run, r.item limit 1) as first,
       (select r.item from shoal.result r where (r.run, r.item) > ($1::int, 0) and (r.run, r.item) < ($1 + 1, 0)
        order by r.run desc, r.item desc limit 1) as last

-- name: events
select e.id, e.at, r.id as run_id, e.actor, e.action, e.subject, e.detail
from shoal.event e left join shoal.run r on r.no = e.run
where ($1::int is null or e.run = $1) and ($2::bigint is null or e.id < $2)
order by e.id desc limit $3

-- name: rank_ready
-- How many items precede it in its queue, counted up to a limit.
select count(*) from (
    select 1 from shoal.item i join shoal.ready r
      on r.queue = i.queue and (r.priority, r.item) < (i.priority, i.id)
    where i.run = $1 and i.id = $2 limit 10001) x

-- name: rank_waiting
select count(*) from (
    select 1 from shoal.item i join shoal.waiting w
      on w.lane = i.lane and w.run = i.run and (w.priority, w.item) < (i.priority, i.id)
    where i.run = $1 and i.id = $2 limit 10001) x

-- name: item_lane
select l.*, r.id as run_id,
       greatest(0, extract(epoch from l.blocked_until - shoal.clock()))::float8 as blocked_seconds,
       greatest(0, extract(epoch from l.next_at - shoal.clock()))::float8 as next_seconds
from shoal.item i join shoal.lane l on l.id = i.lane left join shoal.run r on r.no = l.run
where i.run = $1 and i.id = $2

-- name: busiest_lanes
select l.*, r.id as run_id,
       greatest(0, extract(epoch from l.blocked_until - shoal.clock()))::float8 as blocked_seconds,
       greatest(0, extract(epoch from l.next_at - shoal.clock()))::float8 as next_seconds
from unnest(shoal.busy_lanes($1::int)) as u(id)
cross join lateral (select l.* from shoal.lane l where l.id = u.id limit 1) l
left join shoal.run r on r.no = l.run
where l.waiting > 0
order by l.waiting desc, l.id limit 5

-- name: delayed_reasons
-- Counted up to a limit, with the first due time of each kind. An item with a slot waits for its lane: for the end of a
-- block, for the item before it in an ordered lane, or for the delay between two starts.
select case when x.reason <> 'lane' then x.reason when l.blocked_until > shoal.clock() then 'blocked'
            when l.ordered then 'order' else 'lane' end as kind,
       count(*) as items, min(x.due_at) as first_due
from shoal.some_delayed($1::int) x left join shoal.lane l on l.id = x.lane
group by 1 order by 2 desc, 1

-- name: blocked_lanes
-- Blocked lanes of delayed items, those with most items first.
select l.*, r.id as run_id,
       greatest(0, extract(epoch from l.blocked_until - shoal.clock()))::float8 as blocked_seconds,
       greatest(0, extract(epoch from l.next_at - shoal.clock()))::float8 as next_seconds
from (select d.lane, count(*) as items from shoal.some_delayed($1::int) d group by d.lane) x
join shoal.lane l on l.id = x.lane
left join shoal.run r on r.no = l.run
where l.blocked_until > shoal.clock()
order by x.items desc, l.id limit 5

-- name: scalings
-- The newest decision for each pool or worker. Only the newest events are read: a run may have very many.
select y.subject, y.at, y.detail, extract(epoch from shoal.clock() - y.at)::float8 as seconds_ago
from (select distinct on (x.subject) x.id, x.subject, x.at, x.detail
      from (select e.id, e.action, e.subject, e.at, e.detail from shoal.event e
            where e.run = $1 order by e.id desc limit 200) x
      where x.action = 'scaled' and x.at > shoal.clock() - interval '15 minutes'
      order by x.subject, x.id desc) y
order by y.id desc limit 3

-- name: run_times
select r.changed_at, shoal.clock() as now from shoal.run r where r.no = $1
