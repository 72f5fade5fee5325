-- Reads. PostgreSQL has the same names and columns; queries that are equal on both are in ledger/queries/. These differ
-- because here times are microseconds ("x [moment]" is converted to a datetime), lists are JSON texts, there is no
-- LATERAL, and rows that refer to each other are joined by id alone: on PostgreSQL the run leads the primary keys.

-- name: worker_progress
with finished as (
    select m.worker, m.done, m.dead, m.skipped, m.done + m.dead + m.skipped + m.retried + m.throttled as attempts,
           m.seconds
    from minute_count m join queue k on k.id = m.queue
    where k.run = ?1 and m.minute > clock() - 60000000 * ?2
),
totals as (
    select f.worker, sum(f.done) as done, sum(f.dead) as dead, sum(f.skipped) as skipped, 0 as leased,
           sum(f.attempts) as attempts, sum(f.seconds) as seconds
    from finished f group by f.worker
    union all
    select s.worker, 0, 0, 0, count(*), 0, 0.0 from lease s where s.run = ?1 group by s.worker
)
select w.id as worker, sum(t.leased) as leased, sum(t.done) as done, sum(t.dead) as dead,
       sum(t.skipped) as skipped, sum(t.attempts) as attempts, sum(t.seconds) as seconds
from totals t join worker w on w.no = t.worker
group by w.id order by done desc, w.id

-- name: recent
-- Attempts that ended in the last minutes, and when one last ended or the run last changed its state.
with run_queue as (select k.id from queue k where k.run = ?1),
moved as (select max(c.moved_at) as at from run_queue k join queue_count c on c.queue = k.id)
select coalesce(sum(a.done), 0) as done, coalesce(sum(a.dead), 0) as dead,
       coalesce(sum(a.skipped), 0) as skipped, coalesce(sum(a.retried), 0) as retried,
       coalesce(sum(a.throttled), 0) as throttled, coalesce(sum(a.results), 0) as results,
       coalesce(sum(a.seconds), 0.0) as seconds,
       max((select r.changed_at from run r where r.no = ?1), coalesce((select v.at from moved v), 0))
           as "quiet_since [moment]"
from run_activity a
where a.run = ?1 and a.step = 60 and a.at > clock() - 60000000 * ?2

-- name: recent_of_stage
-- The same of one stage, from what each worker ended per minute: the history has the run only.
with stage_queue as (select k.id from queue k where k.stage = ?3),
moved as (select max(c.moved_at) as at from stage_queue k join queue_count c on c.queue = k.id)
select coalesce(sum(m.done), 0) as done, coalesce(sum(m.dead), 0) as dead,
       coalesce(sum(m.skipped), 0) as skipped, coalesce(sum(m.retried), 0) as retried,
       coalesce(sum(m.throttled), 0) as throttled, coalesce(sum(m.results), 0) as results,
       coalesce(sum(m.seconds), 0.0) as seconds,
       max((select r.changed_at from run r where r.no = ?1), coalesce((select v.at from moved v), 0))
           as "quiet_since [moment]"
from minute_count m
where m.minute > clock() - 60000000 * ?2 and m.queue in (select k.id from stage_queue k)

-- name: finished_keys
-- $2: hashes of 32 bytes, one after another; JSON cannot carry bytes. The join order makes each pair one index lookup.
-- $3: those that died of a permanent error instead.
with recursive wanted (at) as (select 1 union all select w.at + 32 from wanted w where w.at + 32 < length(?2))
select distinct i.key_hash
from wanted w
cross join json_each(?1) s
cross join item i on i.stage = s.value and i.key_hash = substr(?2, w.at, 32)
join outcome o on o.item = i.id
where case when ?3 then o.state = 'dead' and o.outcome = 'permanent' else o.state in ('done', 'skipped') end

-- name: item_views
-- The state is the table that holds the row; one statement has one snapshot, so it is unique.
select i.id, g.name as stage, k.partition, i.key, i.url, i.payload, i.request, i.depth, l.key as lane,
       i.priority, i.parent,
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

-- name: find_items
-- Lists of items: the next ids in ascending order, from the table of such items. seen_to: only items up to this id were
-- read, because many do not match; null means all. This one: of the queues ?2, in the state ?1, which has its own table
-- and index; null: any state. `in (select ...)` replaces LATERAL, which SQLite lacks. Ready items are ordered by id
-- within each priority, so `kind` steps from priority to priority along the index.
with recursive kind (queue, priority) as (
    select q.value, (select y.priority from ready y where y.queue = q.value order by y.priority limit 1)
    from json_each(?2) q where ?1 = 'ready'
    union all
    select k.queue, (select y.priority from ready y where y.queue = k.queue and y.priority > k.priority
                     order by y.priority limit 1)
    from kind k where k.priority is not null
)
select json_group_array(f.item) as ids, null as seen_to from (
    select z.id as item from json_each(?2) q
    cross join item z indexed by item_queue on z.queue = q.value and z.id in (
        select x.id from item x indexed by item_queue where x.queue = q.value and x.id > ?3 order by x.id limit ?4)
    where ?1 is null
    union all
    select z.item as item from json_each(?2) q
    cross join waiting z indexed by waiting_queue on z.queue = q.value and z.item in (
        select x.item from waiting x indexed by waiting_queue where x.queue = q.value and x.item > ?3 order by x.item limit ?4)
    where ?1 is 'waiting'
    union all
    select z.item as item from json_each(?2) q
    cross join delayed z indexed by delayed_queue on z.queue = q.value and z.item in (
        select x.item from delayed x indexed by delayed_queue where x.queue = q.value and x.item > ?3 order by x.item limit ?4)
    where ?1 is 'delayed'
    union all
    select s.item from lease s where ?1 is 'leased' and s.item > ?3 and s.queue in (select value from json_each(?2))
    union all
    select y.item from kind k
    cross join ready y on y.queue = k.queue and y.priority = k.priority and y.item in (
        select x.item from ready x where x.queue = k.queue and x.priority = k.priority and x.item > ?3
        order by x.item limit ?4)
    where k.priority is not null
    order by item limit ?4) f

-- name: find_done
-- Done items of the run ?1, of the queues ?2. At most ?5 items are read.
with seen as materialized (
    select z.id from json_each(coalesce(?2, (select json_group_array(k.id) from queue k where k.run = ?1))) q
    cross join item z on z.id in (
        select x.id from item x indexed by item_queue where x.queue = q.value and x.id > ?3 order by x.id limit ?5)
    order by z.id limit ?5
)
select (select json_group_array(f.id) from (
            select w.id from seen w cross join outcome o on o.item = w.id
            where o.state = 'done' order by w.id limit ?4) f) as ids,
       case when count(*) = ?5 then max(w.id) end as seen_to
from seen w

-- name: find_done_of_run
-- Done items of the run ?1. At most ?4 ended items are read, of all runs, up to the last item of this run (?5).
with seen as materialized (
    select o.item, o.run = ?1 and o.state = 'done' as matches
    from outcome o where o.item > ?2 and o.item <= ?5 order by o.item limit ?4
)
select (select json_group_array(f.item) from (select w.item from seen w where w.matches order by w.item limit ?3) f) as ids,
       case when count(*) = ?4 then max(w.item) end as seen_to
from seen w

-- name: find_ended
-- Dead, skipped or cancelled items (?6); of the queues ?2, with the outcome ?7, with the text ?8 in their error.
with seen as materialized (
    select o.item, (?2 is null or o.queue in (select value from json_each(?2))) and (?7 is null or o.outcome = ?7)
                   and (?8 is null or instr(o.error, ?8) > 0) as matches
    from outcome o indexed by outcome_not_done
    where o.run = ?1 and o.state = ?6 and o.state <> 'done' and o.item > ?3 order by o.item limit ?5
)
select (select json_group_array(f.item) from (select w.item from seen w where w.matches order by w.item limit ?4) f) as ids,
       case when count(*) = ?5 then max(w.item) end as seen_to
from seen w

-- name: find_attempted
-- Items with an earlier attempt of this outcome or error, not necessarily their last: the caller checks that.
-- The last item may have more attempts than were read: unless it is the only one, it is left for the next page.
with seen as materialized (
    select a.item, a.run = ?1 and (?5 is null or a.outcome = ?5) and (?6 is null or instr(a.error, ?6) > 0) as matches
    from attempt a
    where a.item > max(?2, coalesce((
        select min(x.id) from (select (select i.id from item i indexed by item_queue where i.queue = k.id
                                       order by i.id limit 1) as id from queue k where k.run = ?1) x) - 1, 0))
    order by a.item, a.epoch limit ?4
)
select (select json_group_array(f.item) from (
            select distinct w.item from seen w where w.matches order by w.item limit ?3) f) as ids,
       case when count(*) = ?4
            then coalesce(max(w.item) filter (where w.item < (select max(x.item) from seen x)), max(w.item)) end as seen_to
from seen w

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

-- name: errors
-- The newest of each table by its index, then the newest of these.
with found as (
    select * from (select o.item, o.ended_at, o.worker, o.outcome, o.error, 1 as final from outcome o
                   where o.run = ?1 and o.state = 'dead' order by o.ended_at desc limit ?2)
    union all
    select * from (select a.item, a.ended_at, a.worker, a.outcome, a.error, 0 from attempt a
                   where a.run = ?1 and a.error is not null and ?3 = 0 order by a.ended_at desc limit ?2)
)
select f.ended_at as "at [moment]", f.item, g.name as stage, coalesce(i.url, i.key) as name, w.id as worker,
       f.outcome, f.error, f.final
from found f
join item i on i.id = f.item
join stage g on g.id = i.stage
left join worker w on w.no = f.worker
order by f.ended_at desc, f.item desc limit ?2

-- name: stale
select s.item, r.id as run_id, coalesce(i.key, i.url) as name, w.id as claimed_by, s.claimed_at as "started [moment]",
       (clock() - s.claimed_at) / 6e7 as minutes_ago
from lease s
join worker w on w.no = s.worker
join run r on r.no = s.run
join item i on i.id = s.item
where s.claimed_at <= clock() - cast(1e6 * ?1 as integer)
order by s.claimed_at limit ?2

-- name: oldest_leases
-- Of each worker the item of the run that it has had longest: with min(), SQLite takes the other columns of that row.
select w.id as worker, x.item, coalesce(i.url, i.key) as name, x.claimed_at as "since [moment]"
from (select s.worker, s.item, min(s.claimed_at) as claimed_at from lease s where s.run = ?1 group by s.worker) x
join worker w on w.no = x.worker
join item i on i.id = x.item
order by x.claimed_at, x.item limit ?2

-- name: results
-- A window of the run's records, and at most ?6 of it, of one stage or of all. The window is read from the index, and
-- only the selected records from the table.
select r.item, r.n, g.name as stage, i.key, i.url, r.record, r.record_key,
       case when r.record_key is null then null when r.first_run = ?1 then 'new'
            when r.changed_run = ?1 then 'changed' else 'unchanged' end as change,
       case r.key_space when 0 then 'scraper' when ?1 then 'run' end as record_scope
from (
    select x.rowid as place from result x
    where x.run = ?1 and (x.item, x.n) > (?2, ?3) order by x.item, x.n limit ?4
) w
cross join result r on r.rowid = w.place
cross join item i on i.id = r.item
cross join stage g on g.id = i.stage
where ?5 is null or i.stage = ?5
order by r.item, r.n limit ?6

-- name: results_by_item_key
-- Records without a key, by the keys of their items: of a window of ?5 items of a stage, at most ?6.
select w.key_hash, r.n, w.id as item, w.key, w.url, r.record
from (
    select i.id, i.key_hash, i.key, i.url from item i
    where i.stage = ?2 and i.key_hash >= ?3 order by i.key_hash limit ?5
) w
cross join result r on r.run = ?1 and r.item = w.id
where r.record_key is null and (w.key_hash > ?3 or r.n > ?4)
order by w.key_hash, r.n limit ?6

-- name: result_span
select (select min(r.item) from result r where r.run = ?1) as first,
       (select max(r.item) from result r where r.run = ?1) as last

-- name: rank_ready
-- How many items precede it in its queue, counted up to a limit. The plus in +i.id removes the affinity of the value:
-- only then does SQLite use the whole key.
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
       max(0.0, (l.blocked_until - clock()) / 1e6) as blocked_seconds,
       max(0.0, (l.next_at - clock()) / 1e6) as next_seconds
from item i join lane l on l.id = i.lane left join run r on r.no = l.run
where i.run = ?1 and i.id = ?2

-- name: busiest_lanes
-- A run may wait for very many lanes, and no index orders them by waiting items: so this reads the lanes of the first
-- items and of some spread evenly over the rest.
with recursive ends as materialized (
    select k.id as queue, 1 + 500 / (select count(*) from queue x where x.run = ?1) as each,
           (select min(w.item) from waiting w indexed by waiting_queue where w.queue = k.id) as first,
           (select max(w.item) from waiting w indexed by waiting_queue where w.queue = k.id) as last
    from queue k where k.run = ?1
),
point (queue, each, first, last, n) as (
    select e.queue, e.each, e.first, e.last, 1 from ends e where e.first is not null
    union all
    select p.queue, p.each, p.first, p.last, p.n + 1 from point p where p.n < p.each
),
seen as materialized (
    select w.lane from ends e
    cross join waiting w indexed by waiting_queue on w.queue = e.queue and w.item in (
        select x.item from waiting x indexed by waiting_queue where x.queue = e.queue order by x.item
        limit (select 1 + 500 / count(*) from queue k where k.run = ?1))
    union
    select (select w.lane from waiting w indexed by waiting_queue
            where w.queue = p.queue and w.item >= p.first + (p.last - p.first) * p.n / p.each
            order by w.item limit 1)
    from point p
)
select l.*, r.id as run_id,
       max(0.0, (l.blocked_until - clock()) / 1e6) as blocked_seconds,
       max(0.0, (l.next_at - clock()) / 1e6) as next_seconds
from seen s cross join lane l on l.id = s.lane left join run r on r.no = l.run
where l.waiting > 0
order by l.waiting desc, l.id limit ?2

-- name: delayed_reasons
-- Counted up to a limit, with the first due time of each kind. An item with a slot waits for its lane: for the end of a
-- block, for the item before it in an ordered lane, or for the delay between two starts.
select case when x.reason <> 'lane' then x.reason when l.blocked_until > clock() then 'blocked'
            when l.ordered then 'order' else 'lane' end as kind,
       sum(x.items) as items, min(x.first_due) as "first_due [moment]"
from (select d.reason, case d.reason when 'lane' then d.lane end as lane, count(*) as items, min(d.due_at) as first_due
      from (select y.reason, y.due_at, y.lane from queue k
            cross join delayed y indexed by delayed_queue on y.queue = k.id where k.run = ?1 limit 10001) d
      group by 1, 2) x
left join lane l on l.id = x.lane
group by kind order by items desc, kind

-- name: blocked_lanes
-- Blocked lanes of delayed items, those with most items first.
select l.*, r.id as run_id,
       max(0.0, (l.blocked_until - clock()) / 1e6) as blocked_seconds,
       max(0.0, (l.next_at - clock()) / 1e6) as next_seconds
from (select d.lane, count(*) as items
      from (select y.lane from queue k cross join delayed y indexed by delayed_queue on y.queue = k.id
            where k.run = ?1 limit 10001) d group by d.lane) x
join lane l on l.id = x.lane
left join run r on r.no = l.run
where l.blocked_until > clock()
order by x.items desc, l.id limit 5

-- name: scalings
-- The newest decision for each pool or worker. Only the newest events are read: a run may have very many.
select x.subject, x.at as "at [moment]", x.detail, (clock() - x.at) / 1e6 as seconds_ago, max(x.id) as newest
from (select e.id, e.action, e.subject, e.at, e.detail from event e
      where e.run = ?1 order by e.id desc limit 200) x
where x.action = 'scaled' and x.at > clock() - 900000000
group by x.subject order by newest desc limit 3

-- name: run_times
select r.changed_at as "changed_at [moment]", clock() as "now [moment]" from run r where r.no = ?1

-- name: find_text
-- Items of the run ?1 with the text ?6 in their key or URL, of the queues ?2. At most ?5 are read, of all runs, up
-- to the last one of this run (?7).
with seen as materialized (
    select i.id, i.run = ?1 and (?2 is null or i.queue in (select value from json_each(?2)))
                 and (instr(i.key, ?6) > 0 or instr(i.url, ?6) > 0) as matches
    from item i where i.id > ?3 and i.id <= ?7 order by i.id limit ?5
)
select (select json_group_array(f.id) from (select w.id from seen w where w.matches order by w.id limit ?4) f) as ids,
       case when count(*) = ?5 then max(w.id) end as seen_to
from seen w

-- name: item_span
-- The first and the last item of a run.
select (select min(x.id) from (select (select i.id from item i indexed by item_queue where i.queue = k.id
                                       order by i.id limit 1) as id from queue k where k.run = ?1) x) as first,
       (select max(x.id) from (select (select i.id from item i indexed by item_queue where i.queue = k.id
                                       order by i.id desc limit 1) as id from queue k where k.run = ?1) x) as last

-- name: find_in_lanes
-- Items of the run ?1 in the lanes ?2.
select json_group_array(f.id) as ids, null as seen_to from (
    select z.id from json_each(?2) l
    cross join item z on z.id in (
        select x.id from item x indexed by item_lane where x.run = ?1 and x.lane = l.value and x.id > ?3
        order by x.id limit ?4)
    order by z.id limit ?4) f

-- name: refine_items
-- Those of the items ?2 that are in one of the lanes ?3 and have the text ?4 in their key or URL (null: any).
select json_group_array(f.id) as ids from (
    select i.id from json_each(?2) u cross join item i on i.id = u.value
    where (?3 is null or i.lane in (select value from json_each(?3)))
      and (?4 is null or instr(i.key, ?4) > 0 or instr(i.url, ?4) > 0)
    order by i.id) f

-- name: refine_ends
-- Those of the items ?2 that ended in one of the states ?3, or with `open` in it have not ended. ?1: the run, not needed.
select json_group_array(f.id) as ids from (
    select u.value as id from json_each(?2) u left join outcome o on o.item = u.value
    where coalesce(o.state, 'open') in (select value from json_each(?3)) and ?1 > 0 order by u.value) f

-- name: children
select i.id from item i indexed by item_parent where i.run = ?1 and i.parent = ?2 and i.id > ?3 order by i.id limit ?4

-- name: item_lanes
-- The lanes of these items.
select l.*, r.id as run_id,
       max(0.0, (l.blocked_until - clock()) / 1e6) as blocked_seconds,
       max(0.0, (l.next_at - clock()) / 1e6) as next_seconds
from (select distinct i.lane from json_each(?2) u cross join item i on i.id = u.value and i.run = ?1) x
cross join lane l on l.id = x.lane left join run r on r.no = l.run

-- name: partition_page
-- Partitions of a stage by name, after ?2 or from it on (?5), or only ?4.
select p.partition, c.ready, c.waiting, c.delayed, c.leased, c.done, c.dead, c.skipped, c.cancelled, c.results,
       c.duplicates, c.new_records, c.changed_records, c.unchanged_records, c.dropped_records, p.id as queue
from (select k.id, k.partition from queue k
      where k.stage = ?1 and k.partition >= ?2 and (?5 or k.partition > ?2)
        and (?4 is null or k.partition = ?4) order by k.partition limit ?3) p
cross join queue_count c on c.queue = p.id
order by p.partition

-- name: partition_rates
-- What ended in the last ?2 minutes, of these queues.
select m.queue, sum(m.done + m.dead + m.skipped) as ended from minute_count m
where m.minute > clock() - 60000000 * ?2 and m.queue in (select value from json_each(?1)) group by m.queue

-- name: events_filtered
-- Of a window of the newest events of a run, or of all, those of an actor or an action.
select e.id, e.at as "at [moment]", r.id as run_id, e.actor, e.action, e.subject, e.detail
from (select * from (select x.* from event x where ?1 is null and x.id < ?2 order by x.id desc limit ?3)
      union all
      select * from (select x.* from event x indexed by event_run where ?1 is not null and x.run = ?1 and x.id < ?2
                     order by x.id desc limit ?3)) e
left join run r on r.no = e.run
where (?4 is null or e.actor = ?4)
  and (?5 is null or e.action = ?5 or (substr(?5, -1) = '.' and substr(e.action, 1, length(?5)) = ?5))
order by e.id desc limit ?6
