-- name: stats
select coalesce(sum(q.ready), 0) as ready, coalesce(sum(q.waiting), 0) as waiting,
       coalesce(sum(q.delayed), 0) as delayed, coalesce(sum(q.leased), 0) as leased,
       coalesce(sum(q.done), 0) as done, coalesce(sum(q.dead), 0) as dead,
       coalesce(sum(q.cancelled), 0) as cancelled, coalesce(sum(q.results), 0) as results,
       coalesce(sum(q.duplicates), 0) as duplicates
from queue_depth q where q.run_id = ?1 and (?2 is null or q.stage = ?2)

-- name: partitions
select q.stage, q.partition, q.ready, q.waiting, q.delayed, q.leased, q.done, q.dead, q.cancelled, q.results,
       q.duplicates
from queue_depth q where q.run_id = ?1 order by q.stage, q.partition

-- name: worker_progress
with finished as (
    select m.worker, m.done, m.dead from minute_count m join queue k on k.id = m.queue
    where k.run = ?1 and m.minute > shoal_now() - 60000000 * ?2
),
totals as (
    select f.worker, sum(f.done) as done, sum(f.dead) as dead, 0 as leased
    from finished f group by f.worker
    union all
    select s.worker, 0, 0, count(*) from lease s where s.run = ?1 group by s.worker
)
select w.id as worker, sum(t.leased) as leased, sum(t.done) as done, sum(t.dead) as dead
from totals t join worker w on w.no = t.worker
group by w.id order by done desc, w.id

-- name: recent
-- What ended in the last minutes, and when something last did, or the run last changed its state.
with run_queue as (select k.id from queue k where k.run = ?1),
moved as (select max(c.moved_at) as at from run_queue k join queue_count c on c.queue = k.id)
select coalesce(sum(m.done), 0) as done, coalesce(sum(m.dead), 0) as dead, coalesce(sum(m.retried), 0) as retried,
       coalesce(sum(m.throttled), 0) as throttled, coalesce(sum(m.results), 0) as results,
       coalesce(sum(m.seconds), 0.0) as seconds,
       max((select r.changed_at from run r where r.no = ?1), coalesce((select v.at from moved v), 0))
           as "quiet_since [moment]"
from minute_count m
where m.minute > shoal_now() - 60000000 * ?2 and m.queue in (select k.id from run_queue k)

-- name: item_views
-- The state is where the row stands; one statement sees one moment, so an item is in exactly one place.
select i.id, g.name as stage, k.partition, i.key, i.url, i.payload, l.key as lane, i.priority, i.parent,
       coalesce(i.max_attempts, g.max_attempts, n.max_attempts) as max_attempts,
       case when o.item is not null then o.state when s.item is not null then 'leased'
            when y.item is not null then 'ready' when d.item is not null then 'delayed'
            when w.item is not null then 'waiting' end as state,
       coalesce(o.ended_at, s.claimed_at, y.since, d.since, w.since) as "since [moment]",
       d.due_at as "due_at [moment]",
       coalesce(wo.id, ws.id) as worker,
       coalesce(o.tries, s.tries, y.tries, d.tries, w.tries) as tries,
       coalesce(o.rescues, s.rescues, y.rescues, d.rescues, w.rescues) as rescues,
       coalesce(o.epoch, s.epoch, y.epoch, d.epoch, w.epoch) as epoch,
       coalesce(o.outcome, a.outcome) as outcome,
       case when o.item is not null then o.error else a.error end as error, d.reason
from json_each(?2) u
cross join item i on i.run = ?1 and i.id = u.value
join run n on n.no = i.run
join stage g on g.id = i.stage
join queue k on k.id = i.queue
left join lane l on l.id = i.lane
left join outcome o on o.item = i.id
left join lease s on s.item = i.id
left join ready y on y.queue = i.queue and y.priority = i.priority and y.item = i.id
left join delayed d on d.item = i.id
left join waiting w on w.lane = i.lane and w.run = i.run and w.priority = i.priority and w.item = i.id
left join worker wo on wo.no = o.worker
left join worker ws on ws.no = s.worker
left join attempt a on a.item = i.id and a.epoch = (select max(x.epoch) from attempt x where x.item = i.id)
order by i.id

-- name: scan_items
-- A window of the run's items in the order they came; states are looked up for the window only.
select i.id from item i where i.run = ?1 and i.id > ?2 order by i.id limit ?3

-- name: scan_ended
-- Dead and cancelled items have an index of their own: they are what people look for among millions that are done.
select o.item as id from outcome o
where o.run = ?1 and o.state in (select value from json_each(?4)) and o.state <> 'done' and o.item > ?2
order by o.item limit ?3

-- name: scan_leased
select s.item as id from lease s where s.run = ?1 and s.item > ?2 order by s.item limit ?3

-- name: item_by_key
select i.id from item i where i.stage = ?1 and i.key_hash = ?2

-- name: attempts
select a.epoch, w.id as worker, a.claimed_at as "claimed_at [moment]", a.ended_at as "ended_at [moment]", a.seconds,
       a.outcome, a.error, a.detail
from (
    select t.epoch, t.worker, t.claimed_at, t.ended_at, t.seconds, t.outcome, t.error, t.detail
    from attempt t where t.run = ?1 and t.item = ?2
    union all
    select o.epoch, o.worker, o.claimed_at, o.ended_at, o.seconds, o.outcome, o.error, o.detail
    from outcome o
    where o.run = ?1 and o.item = ?2 and (o.epoch > 0 and (o.state <> 'cancelled' or o.worker is not null))
) a left join worker w on w.no = a.worker
order by a.epoch

-- name: failed
select o.item, g.name as stage, coalesce(i.url, i.key) as url, o.outcome, o.error as error_message,
       max(o.tries - 1, 0) as retry_count, o.ended_at as "failed_at [moment]"
from outcome o
join item i on i.id = o.item
join stage g on g.id = i.stage
where o.run = ?1 and o.state = 'dead' and o.item > ?2
order by o.item limit ?3

-- name: stale
select s.item, r.id as run_id, coalesce(i.key, i.url) as name, w.id as claimed_by, s.claimed_at as "started [moment]",
       (shoal_now() - s.claimed_at) / 6e7 as minutes_ago
from lease s
join worker w on w.no = s.worker
join run r on r.no = s.run
join item i on i.id = s.item
where s.claimed_at <= shoal_now() - cast(1e6 * ?1 as integer)
order by s.claimed_at limit ?2

-- name: results
-- A window of the run's records; of these at most so many of the stage, or of all. The window is walked along the index:
-- only records that are wanted are read.
select r.item, r.n, g.name as stage, i.key, i.url, r.record
from (
    select x.rowid as place from result x
    where x.run = ?1 and (x.item, x.n) > (?2, ?3) order by x.item, x.n limit ?4
) w
cross join result r on r.rowid = w.place
cross join item i on i.id = r.item
cross join stage g on g.id = i.stage
where ?5 is null or i.stage = ?5
order by r.item, r.n limit ?6

-- name: results_window_end
-- The last row of a full window; none when the window reaches the end.
select r.item, r.n from result r
where r.run = ?1 and (r.item, r.n) > (?2, ?3) order by r.item, r.n limit 1 offset ?4 - 1

-- name: events
select e.id, e.at as "at [moment]", r.id as run_id, e.actor, e.action, e.subject, e.detail
from event e left join run r on r.no = e.run
where (?1 is null or e.run = ?1) and (?2 is null or e.id < ?2)
order by e.id desc limit ?3

-- name: rank_ready
-- How many stand before it in its queue, counted up to a limit.
select count(*) from (
    select 1 from item i join ready r
      on r.queue = i.queue and (r.priority, r.item) < (i.priority, +i.id)
    where i.run = ?1 and i.id = ?2 limit 10001) x

-- name: rank_waiting
select count(*) from (
    select 1 from item i join waiting w
      on w.lane = i.lane and w.run = i.run and (w.priority, w.item) < (i.priority, +i.id)
    where i.run = ?1 and i.id = ?2 limit 10001) x

-- name: item_lane
select l.*, r.id as run_id,
       max(0.0, (l.blocked_until - shoal_now()) / 1e6) as blocked_seconds,
       max(0.0, (l.next_at - shoal_now()) / 1e6) as next_seconds
from item i join lane l on l.id = i.lane left join run r on r.no = l.run
where i.run = ?1 and i.id = ?2

-- name: busiest_lanes
select l.*, r.id as run_id,
       max(0.0, (l.blocked_until - shoal_now()) / 1e6) as blocked_seconds,
       max(0.0, (l.next_at - shoal_now()) / 1e6) as next_seconds
from lane l left join run r on r.no = l.run
where l.waiting > 0 and (l.run = 0 or l.run = ?1)
  and exists (select 1 from waiting w where w.lane = l.id and w.run = ?1)
order by l.waiting desc, l.id limit 5

-- name: delayed_reasons
-- Counted up to a limit; the first to come due of each kind. An item that keeps its place in a lane waits for what the
-- lane waits for: the end of a block, its turn in a group, or the distance between two starts.
select case when x.reason <> 'lane' then x.reason when l.blocked_until > shoal_now() then 'blocked'
            when l.ordered then 'order' else 'lane' end as kind,
       count(*) as items, min(x.due_at) as "first_due [moment]"
from (select d.reason, d.due_at, d.lane from delayed d where d.run = ?1 limit 10001) x
left join lane l on l.id = x.lane
group by kind order by items desc, kind

-- name: blocked_lanes
-- Of the items that are delayed: the lanes that are blocked, those with most items first.
select l.*, r.id as run_id,
       max(0.0, (l.blocked_until - shoal_now()) / 1e6) as blocked_seconds,
       max(0.0, (l.next_at - shoal_now()) / 1e6) as next_seconds
from (select d.lane, count(*) as items
      from (select y.lane from delayed y where y.run = ?1 limit 10001) d group by d.lane) x
join lane l on l.id = x.lane
left join run r on r.no = l.run
where l.blocked_until > shoal_now()
order by x.items desc, l.id limit 5

-- name: run_holders
select w.id as worker, count(*) as leased, sum(s.claimed_at >= coalesce(w.reported_at, 0)) as fresh
from lease s join worker w on w.no = s.worker where s.run = ?1 group by w.no order by leased desc, w.no

-- name: scalings
-- The newest change of each pool or worker. Only the newest events are looked at: a run may have very many.
select x.subject, x.at as "at [moment]", x.detail, (shoal_now() - x.at) / 1e6 as seconds_ago, max(x.id) as newest
from (select e.id, e.action, e.subject, e.at, e.detail from event e
      where e.run = ?1 order by e.id desc limit 200) x
where x.action = 'scaled' and x.at > shoal_now() - 900000000
group by x.subject order by newest desc limit 3

-- name: run_times
select r.changed_at as "changed_at [moment]", shoal_now() as "now [moment]" from run r where r.no = ?1
