-- Reads. SQLite has the same names and columns; queries that are equal on both are in ledger/queries/. These differ
-- because here times are timestamps, lists are arrays, counts are totals plus deltas, and the run leads the primary
-- keys of item, outcome, attempt and result. Some call functions, whose plans are pinned (functions/75_lists.sql).

-- name: worker_progress
with finished as (
    select m.worker, m.done, m.dead, m.skipped, m.done + m.dead + m.skipped + m.retried + m.throttled as attempts,
           m.seconds
    from shoal.minute_count m join shoal.queue k on k.id = m.queue
    where k.run = $1 and m.minute > shoal.clock() - make_interval(mins => $2)
    union all
    select d.worker, d.done, d.dead, d.skipped, d.done + d.dead + d.skipped + d.retried + d.throttled, d.seconds
    from shoal.count_delta d join shoal.queue k on k.id = d.queue
    where k.run = $1 and d.worker is not null
),
totals as (
    select f.worker, sum(f.done)::bigint as done, sum(f.dead)::bigint as dead,
           sum(f.skipped)::bigint as skipped, 0::bigint as leased, sum(f.attempts)::bigint as attempts,
           sum(f.seconds)::float8 as seconds
    from finished f group by f.worker
    union all
    select s.worker, 0, 0, 0, count(*), 0, 0 from shoal.lease s where s.run = $1 group by s.worker
)
select w.id as worker, sum(t.leased)::bigint as leased, sum(t.done)::bigint as done, sum(t.dead)::bigint as dead,
       sum(t.skipped)::bigint as skipped, sum(t.attempts)::bigint as attempts, sum(t.seconds)::float8 as seconds
from totals t join shoal.worker w on w.no = t.worker
group by w.id order by done desc, w.id

-- name: recent
-- Attempts that ended in the last minutes, and when one last ended or the run last changed its state.
with run_queue as materialized (select k.id from shoal.queue k where k.run = $1),
unfolded as materialized (
    select d.* from shoal.count_delta d where d.worker is not null and d.queue in (select k.id from run_queue k)
),
ends as (
    select a.done, a.dead, a.skipped, a.retried, a.throttled, a.results, a.seconds from shoal.run_activity a
    where a.run = $1 and a.step = 60 and a.at > shoal.clock() - make_interval(mins => $2)
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

-- name: recent_of_stage
-- The same of one stage, from what each worker ended per minute: the history has the run only.
with stage_queue as materialized (select k.id from shoal.queue k where k.stage = $3),
unfolded as materialized (
    select d.* from shoal.count_delta d where d.worker is not null and d.queue in (select k.id from stage_queue k)
),
ends as (
    select m.done, m.dead, m.skipped, m.retried, m.throttled, m.results, m.seconds from shoal.minute_count m
    where m.minute > shoal.clock() - make_interval(mins => $2) and m.queue in (select k.id from stage_queue k)
    union all
    select u.done, u.dead, u.skipped, u.retried, u.throttled, u.results, u.seconds from unfolded u
)
select coalesce(sum(e.done), 0)::bigint as done, coalesce(sum(e.dead), 0)::bigint as dead,
       coalesce(sum(e.skipped), 0)::bigint as skipped,
       coalesce(sum(e.retried), 0)::bigint as retried, coalesce(sum(e.throttled), 0)::bigint as throttled,
       coalesce(sum(e.results), 0)::bigint as results, coalesce(sum(e.seconds), 0)::float8 as seconds,
       greatest((select r.changed_at from shoal.run r where r.no = $1), (select max(u.at) from unfolded u),
                (select max(c.moved_at) from shoal.queue_count c where c.queue in (select k.id from stage_queue k)))
           as quiet_since
from ends e

-- name: finished_keys
-- $2: hashes of 32 bytes, one after another. Each pair of a stage and a hash is one index lookup.
-- $3: those that died of a permanent error instead.
select distinct i.key_hash
from unnest($1::int[]) s (id)
cross join generate_series(1, length($2::bytea), 32) w (at)
cross join lateral (
    select i.run, i.id, i.key_hash from shoal.item i
    where i.stage = s.id and i.key_hash = substring($2::bytea from w.at for 32) limit 1
) i
join shoal.outcome o on o.run = i.run and o.item = i.id
where case when $3::bool then o.state = 'dead' and o.outcome = 'permanent' else o.state in ('done', 'skipped') end

-- name: item_views
select * from shoal.item_views($1::int, $2::bigint[])

-- name: find_items
select * from shoal.find_items($1::text, $2::int[], $3::bigint, $4::int)

-- name: find_done
select * from shoal.find_done($1::int, $2::int[], $3::bigint, $4::int, $5::int)

-- name: find_done_of_run
-- Done items of a run, whose last item is $5.
select f.ids, case when f.seen_to < $5::bigint then f.seen_to end as seen_to
from shoal.find_done($1::int, null, $2::bigint, $3::int, $4::int) f

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

-- name: errors
-- The newest of each table by its index, then the newest of these.
with found as (
    (select o.item, o.ended_at, o.worker, o.outcome, o.error, 1 as final from shoal.outcome o
     where o.run = $1 and o.state = 'dead' order by o.ended_at desc limit $2)
    union all
    (select a.item, a.ended_at, a.worker, a.outcome, a.error, 0 from shoal.attempt a
     where a.run = $1 and a.error is not null and $3 = 0 order by a.ended_at desc limit $2)
)
select f.ended_at as at, f.item, g.name as stage, coalesce(i.url, i.key) as name, w.id as worker, f.outcome, f.error,
       f.final
from found f
join shoal.item i on i.run = $1 and i.id = f.item
join shoal.stage g on g.id = i.stage
left join shoal.worker w on w.no = f.worker
order by f.ended_at desc, f.item desc limit $2

-- name: stale
select s.item, r.id as run_id, coalesce(i.key, i.url) as name, w.id as claimed_by, s.claimed_at as started,
       (extract(epoch from shoal.clock() - s.claimed_at) / 60)::float8 as minutes_ago
from shoal.lease s
join shoal.worker w on w.no = s.worker
join shoal.run r on r.no = s.run
join shoal.item i on i.run = s.run and i.id = s.item
where s.claimed_at <= shoal.clock() - make_interval(secs => $1)
order by s.claimed_at limit $2

-- name: oldest_leases
-- Of each worker the item of the run that it has had longest.
select w.id as worker, x.item, coalesce(i.url, i.key) as name, x.claimed_at as since
from (select distinct on (s.worker) s.worker, s.item, s.claimed_at from shoal.lease s where s.run = $1
      order by s.worker, s.claimed_at, s.item) x
join shoal.worker w on w.no = x.worker
cross join lateral (select i.url, i.key from shoal.item i where i.run = $1 and i.id = x.item limit 1) i
order by x.claimed_at, x.item limit $2

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
order by l.waiting desc, l.id limit $2

-- name: delayed_reasons
-- Counted up to a limit, with the first due time of each kind. An item with a slot waits for its lane: for the end of a
-- block, for the item before it in an ordered lane, or for the delay between two starts.
select case when x.reason <> 'lane' then x.reason when l.blocked_until > shoal.clock() then 'blocked'
            when l.ordered then 'order' else 'lane' end as kind,
       sum(x.items)::bigint as items, min(x.first_due) as first_due
from (select d.reason, case d.reason when 'lane' then d.lane end as lane, count(*) as items, min(d.due_at) as first_due
      from shoal.some_delayed($1::int) d group by 1, 2) x
left join lateral (select l.blocked_until, l.ordered from shoal.lane l where l.id = x.lane limit 1) l on true
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

-- name: find_text
-- $7: the last item of the run.
select f.ids, case when f.seen_to < $7::bigint then f.seen_to end as seen_to
from shoal.find_text($1::int, $2::int[], $3::bigint, $4::int, $5::int, $6::text) f

-- name: item_span
-- The first and the last item of a run.
select (select i.id from shoal.item i where (i.run, i.id) > ($1::int, 0) and (i.run, i.id) < ($1 + 1, 0)
        order by i.run, i.id limit 1) as first,
       (select i.id from shoal.item i where (i.run, i.id) > ($1::int, 0) and (i.run, i.id) < ($1 + 1, 0)
        order by i.run desc, i.id desc limit 1) as last

-- name: find_in_lanes
select * from shoal.find_in_lanes($1::int, $2::bigint[], $3::bigint, $4::int)

-- name: refine_items
select shoal.refine_items($1::int, $2::bigint[], $3::bigint[], $4::text) as ids

-- name: refine_ends
-- Those of the items $2 that ended in one of the states $3, or with `open` in it have not ended.
select array(
    select u.id from unnest($2::bigint[]) as u(id)
    left join lateral (select o.state from shoal.outcome o where o.run = $1::int and o.item = u.id limit 1) o on true
    where coalesce(o.state, 'open') = any ($3::text[]) order by u.id) as ids

-- name: children
select i.id from shoal.item i
where i.run = $1 and i.parent = $2 and i.id > $3 order by i.run, i.parent, i.id limit $4

-- name: item_lanes
-- The lanes of these items.
select distinct on (l.id) l.*, r.id as run_id,
       greatest(0, extract(epoch from l.blocked_until - shoal.clock()))::float8 as blocked_seconds,
       greatest(0, extract(epoch from l.next_at - shoal.clock()))::float8 as next_seconds
from unnest($2::bigint[]) as u(id)
cross join lateral (select i.lane from shoal.item i where i.run = $1 and i.id = u.id limit 1) i
join shoal.lane l on l.id = i.lane left join shoal.run r on r.no = l.run
order by l.id

-- name: partition_page
-- Partitions of a stage by name, after $2 or from it on ($5), or only $4.
select p.partition, coalesce(c.ready, 0) + coalesce(d.ready, 0) as ready, coalesce(c.waiting, 0) + coalesce(d.waiting, 0) as waiting,
       coalesce(c.delayed, 0) + coalesce(d.delayed, 0) as delayed, coalesce(c.leased, 0) + coalesce(d.leased, 0) as leased,
       coalesce(c.done, 0) + coalesce(d.done, 0) as done, coalesce(c.dead, 0) + coalesce(d.dead, 0) as dead,
       coalesce(c.skipped, 0) + coalesce(d.skipped, 0) as skipped,
       coalesce(c.cancelled, 0) + coalesce(d.cancelled, 0) as cancelled,
       coalesce(c.results, 0) + coalesce(d.results, 0) as results,
       coalesce(c.duplicates, 0) + coalesce(d.duplicates, 0) as duplicates,
       coalesce(c.new_records, 0) + coalesce(d.new_records, 0) as new_records,
       coalesce(c.changed_records, 0) + coalesce(d.changed_records, 0) as changed_records,
       coalesce(c.unchanged_records, 0) + coalesce(d.unchanged_records, 0) as unchanged_records,
       coalesce(c.dropped_records, 0) + coalesce(d.dropped_records, 0) as dropped_records, p.id as queue
from (select k.id, k.partition from shoal.queue k
      where k.stage = $1 and k.partition >= $2 and ($5::boolean or k.partition > $2)
        and ($4::text is null or k.partition = $4)
      order by k.stage, k.partition limit $3) p
left join shoal.queue_count c on c.queue = p.id
left join (
    select x.queue, sum(x.ready)::bigint as ready, sum(x.waiting)::bigint as waiting, sum(x.delayed)::bigint as delayed,
           sum(x.leased)::bigint as leased, sum(x.done)::bigint as done, sum(x.dead)::bigint as dead,
           sum(x.skipped)::bigint as skipped, sum(x.cancelled)::bigint as cancelled, sum(x.results)::bigint as results,
           sum(x.duplicates)::bigint as duplicates, sum(x.new_records)::bigint as new_records,
           sum(x.changed_records)::bigint as changed_records, sum(x.unchanged_records)::bigint as unchanged_records,
           sum(x.dropped_records)::bigint as dropped_records
    from shoal.count_delta x group by x.queue
) d on d.queue = p.id
order by p.partition

-- name: partition_rates
-- What ended in the last $2 minutes, of these queues.
select m.queue, sum(m.done + m.dead + m.skipped)::bigint as ended from shoal.minute_count m
where m.minute > shoal.clock() - make_interval(mins => $2::int) and m.queue = any ($1::int[]) group by m.queue

-- name: events_filtered
-- Of a window of the newest events of a run, or of all, those of an actor or an action.
select e.id, e.at, r.id as run_id, e.actor, e.action, e.subject, e.detail
from (select x.* from shoal.event x where x.id < $2::bigint order by x.id desc limit $3) e
left join shoal.run r on r.no = e.run
where $1::int is null and ($4::text is null or e.actor = $4)
  and ($5::text is null or e.action = $5 or (right($5, 1) = '.' and starts_with(e.action, $5)))
union all
select e.id, e.at, r.id as run_id, e.actor, e.action, e.subject, e.detail
from (select x.* from shoal.event x where x.run = $1::int and x.id < $2::bigint order by x.run desc, x.id desc limit $3) e
left join shoal.run r on r.no = e.run
where $1::int is not null and ($4::text is null or e.actor = $4)
  and ($5::text is null or e.action = $5 or (right($5, 1) = '.' and starts_with(e.action, $5)))
order by id desc limit $6
