-- Changes of many items. Each step collects rows in a temporary table and moves them table by table; on PostgreSQL each
-- step is a function (functions/60_runs.sql).

-- name: release_slot_pick_ready
-- Items of a paused or idle run that lose their slots in shared lanes, of one queue: [[priority, id, lane], ...].
insert into temp.released (item, lane, queue, priority, epoch, tries, rescues, was_ready)
select y.item, y.lane, y.queue, y.priority, y.epoch, y.tries, y.rescues, 1
from json_each(?2) j
cross join lane l on l.id = j.value ->> 2
cross join ready y on y.queue = ?1 and y.priority = j.value ->> 0 and y.item = j.value ->> 1
where l.run = 0

-- name: release_slot_pick_delayed
insert into temp.released (item, lane, queue, priority, epoch, tries, rescues, was_ready)
select d.item, d.lane, d.queue, d.priority, d.epoch, d.tries, d.rescues, 0
from json_each(?2) j
cross join lane l on l.id = j.value ->> 2
cross join delayed d on d.item = j.value ->> 1
where l.run = 0 and d.slotted and d.queue = ?1

-- name: release_slot_leave_ready
delete from ready where (queue, priority, item)
    in (select g.queue, g.priority, g.item from temp.released g where g.was_ready)

-- name: release_slot_leave_delayed
delete from delayed where item in (select g.item from temp.released g where not g.was_ready)

-- name: release_slot_waiting
insert into waiting (lane, run, priority, item, since, queue, epoch, tries, rescues)
select g.lane, ?1, g.priority, g.item, ?2, g.queue, g.epoch, g.tries, g.rescues from temp.released g

-- name: release_slot_lanes
update lane as l set taken = l.taken - n.n, unstarted = l.unstarted - n.n, waiting = l.waiting + n.n
from (select g.lane, count(*) as n from temp.released g group by g.lane) n
where l.id = n.lane

-- name: release_slot_touch
insert or ignore into temp.touched (lane) select g.lane from temp.released g

-- name: release_slot_counts
update queue_count as c set waiting = c.waiting + n.n, ready = c.ready - n.ready, delayed = c.delayed - n.n + n.ready
from (select g.queue, count(*) as n, sum(g.was_ready) as ready from temp.released g group by g.queue) n
where c.queue = n.queue

-- name: release_slot_end
delete from temp.released

-- name: purge_pick
-- The items to delete next, [id, ...].
select json_group_array(i.id) from (
    select i.id from queue k cross join item i indexed by item_queue on i.queue = k.id where k.run = ?1 limit ?2) i

-- name: purge_results
delete from result where run = ?1 and item in (select value from json_each(?2))

-- name: purge_attempts
delete from attempt where item in (select value from json_each(?1))

-- name: purge_outcomes
delete from outcome where item in (select value from json_each(?1))

-- name: purge_items
delete from item where id in (select value from json_each(?1))

-- name: forget_counts
delete from queue_count where queue in (select k.id from queue k where k.run = ?1)

-- name: forget_minutes
delete from minute_count where queue in (select k.id from queue k where k.run = ?1)

-- name: forget_activity
delete from run_activity where run = ?1

-- name: forget_author_counts
delete from author_count where run = ?1

-- name: forget_states
delete from run_state where run = ?1

-- name: purge_lanes
delete from lane where id in (select l.id from lane l where l.run = ?1 limit ?2)

-- name: purge_changes
delete from result_change where position in (select c.position from result_change c where c.run = ?1 limit ?2)

-- name: forget_failure_minutes
delete from failure_minute where failure in (select g.id from failure_group g where g.run = ?1)

-- name: forget_failures
delete from failure_group where run = ?1

-- name: forget_slow_lanes
delete from slow_lane where run = ?1

-- name: forget_dead_letters
delete from dead_letter where run = ?1

-- name: forget_queues
delete from queue where run = ?1

-- name: forget_stages
delete from stage where run = ?1

-- name: forget_notes
delete from run_note where run = ?1

-- name: forget_run
delete from run where no = ?1 and state = 'removed'

-- name: empty_item
delete from item

-- name: empty_ready
delete from ready

-- name: empty_waiting
delete from waiting

-- name: empty_delayed
delete from delayed

-- name: empty_lease
delete from lease

-- name: empty_outcome
delete from outcome

-- name: empty_attempt
delete from attempt

-- name: empty_result
delete from result

-- name: empty_result_change
delete from result_change

-- name: empty_queue_count
delete from queue_count

-- name: empty_minute_count
delete from minute_count

-- name: empty_failure_group
delete from failure_group

-- name: empty_failure_minute
delete from failure_minute

-- name: empty_slow_lane
delete from slow_lane

-- name: empty_run_activity
delete from run_activity

-- name: empty_author_count
delete from author_count

-- name: empty_run_state
delete from run_state

-- name: drop_ready
-- Items of a run to end as cancelled, [id, ...], whatever their state: first collected from each table, then moved.
insert into temp.dropped (item, lane, queue, priority, epoch, tries, rescues, worker, claimed_at, slotted,
                          unstarted, place)
select y.item, y.lane, y.queue, y.priority, y.epoch, y.tries, y.rescues, null, ?3, 1, 1, 'ready'
from json_each(?2) j
cross join item i on i.id = j.value and i.run = ?1
cross join ready y on y.queue = i.queue and y.priority = i.priority and y.item = i.id

-- name: drop_waiting
insert into temp.dropped (item, lane, queue, priority, epoch, tries, rescues, worker, claimed_at, slotted,
                          unstarted, place)
select w.item, w.lane, w.queue, w.priority, w.epoch, w.tries, w.rescues, null, ?3, 0, 0, 'waiting'
from json_each(?2) j
cross join item i on i.id = j.value and i.run = ?1
cross join waiting w on w.lane = i.lane and w.run = i.run and w.priority = i.priority and w.item = i.id

-- name: drop_delayed
insert into temp.dropped (item, lane, queue, priority, epoch, tries, rescues, worker, claimed_at, slotted,
                          unstarted, place)
select d.item, d.lane, d.queue, d.priority, d.epoch, d.tries, d.rescues, null, ?3, d.slotted, d.slotted, 'delayed'
from json_each(?2) j cross join delayed d on d.item = j.value and d.run = ?1

-- name: drop_leased
insert into temp.dropped (item, lane, queue, priority, epoch, tries, rescues, worker, claimed_at, slotted,
                          unstarted, place)
select s.item, s.lane, s.queue, s.priority, s.epoch, s.tries, s.rescues, s.worker, s.claimed_at, 1,
       s.started_at is null, 'leased'
from json_each(?2) j cross join lease s on s.item = j.value and s.run = ?1

-- name: drop_leave_ready
delete from ready where (queue, priority, item)
    in (select g.queue, g.priority, g.item from temp.dropped g where g.place = 'ready')

-- name: drop_leave_waiting
delete from waiting where (lane, run, priority, item)
    in (select g.lane, ?1, g.priority, g.item from temp.dropped g where g.place = 'waiting')

-- name: drop_leave_delayed
delete from delayed where item in (select g.item from temp.dropped g where g.place = 'delayed')

-- name: drop_leave_leased
delete from lease where item in (select g.item from temp.dropped g where g.place = 'leased')

-- name: drop_outcomes
insert into outcome (item, claimed_at, ended_at, run, queue, epoch, worker, seconds, tries, rescues, state, outcome,
                     error)
select g.item, g.claimed_at, ?2, ?1, g.queue, g.epoch, g.worker, 0, g.tries, g.rescues, 'cancelled', 'cancelled', ?3
from temp.dropped g

-- name: drop_lanes
update lane as l set taken = l.taken - n.slotted, unstarted = l.unstarted - n.unstarted, waiting = l.waiting - n.waiting
from (select g.lane, sum(g.slotted) as slotted, sum(g.unstarted) as unstarted, sum(g.place = 'waiting') as waiting
      from temp.dropped g where g.lane is not null group by g.lane) n
where l.id = n.lane

-- name: drop_touch
insert or ignore into temp.touched (lane) select g.lane from temp.dropped g where g.lane is not null

-- name: drop_counts
update queue_count as c
set cancelled = c.cancelled + n.n, ready = c.ready - n.ready, waiting = c.waiting - n.waiting,
    delayed = c.delayed - n.delayed, leased = c.leased - n.leased
from (
    select g.queue, count(*) as n, sum(g.place = 'ready') as ready, sum(g.place = 'waiting') as waiting,
           sum(g.place = 'delayed') as delayed, sum(g.place = 'leased') as leased
    from temp.dropped g group by g.queue
) n
where c.queue = n.queue

-- name: drop_end
delete from temp.dropped

-- name: next_leased
-- The next items of a queue in one table, after a priority and an id: [[priority, id, lane], ...].
select json_group_array(json_array(x.priority, x.item, x.lane)) from (
    select s.priority, s.item, s.lane from lease s where s.queue = ?1 and s.item > ?3 order by s.item limit ?4) x

-- name: next_delayed
-- The lane only of items that have a slot in it.
select json_group_array(json_array(x.priority, x.item, x.lane)) from (
    select d.priority, d.item, iif(d.slotted, d.lane, null) as lane from delayed d indexed by delayed_queue
    where d.queue = ?1 and d.item > ?3 order by d.item limit ?4) x

-- name: next_waiting
select json_group_array(json_array(x.priority, x.item, x.lane)) from (
    select w.priority, w.item, w.lane from waiting w indexed by waiting_queue
    where w.queue = ?1 and w.item > ?3 order by w.item limit ?4) x

-- name: next_ready
select json_group_array(json_array(x.priority, x.item, x.lane)) from (
    select y.priority, y.item, y.lane from ready y
    where y.queue = ?1 and (y.priority, y.item) > (?2, ?3) order by y.priority, y.item limit ?4) x

-- name: retry_pick
-- Dead, skipped or cancelled items to retry: tries and rescues start at 0, the epoch continues.
insert into temp.retried (item, lane, queue, priority, epoch, state, worker, claimed_at, ended_at, seconds, outcome,
                          error, detail, failure)
select o.item, i.lane, o.queue, i.priority, o.epoch, o.state, o.worker, o.claimed_at, o.ended_at, o.seconds, o.outcome,
       o.error, o.detail, o.failure
from json_each(?2) j
cross join outcome o on o.item = j.value and o.run = ?1 and o.state in ('dead', 'skipped', 'cancelled')
cross join item i on i.id = o.item

-- name: retry_leave
delete from outcome where item in (select v.item from temp.retried v)

-- name: retry_failures
update failure_group as g set items = g.items - n.n
from (select v.failure, count(*) as n from temp.retried v where v.failure is not null group by v.failure) n
where g.id = n.failure

-- name: retry_result_counts
update queue_count as c set results = c.results - n.n
from (select v.queue, count(*) as n from temp.retried v cross join result x on x.run = ?1 and x.item = v.item
      group by v.queue) n
where c.queue = n.queue

-- name: retry_changes
-- Readers of the log may have the records that are deleted: they are told that there are none any more.
insert into result_change (run, stage, at, records, replaced, items)
select ?1, o.stage, ?2, 0, 1, json_group_array(o.item)
from (
    select distinct k.stage, v.item
    from temp.retried v cross join result x on x.run = ?1 and x.item = v.item cross join queue k on k.id = v.queue
    order by k.stage, v.item
) o
group by o.stage

-- name: retry_results
-- Records that were stored when the item died.
delete from result where run = ?1 and item in (select v.item from temp.retried v)

-- name: retry_history
-- Their outcome becomes an ordinary attempt. An item that ended before its first claim has none to keep.
insert into attempt (item, epoch, claimed_at, ended_at, run, worker, seconds, outcome, error, detail)
select v.item, v.epoch, v.claimed_at, v.ended_at, ?1, v.worker, v.seconds, v.outcome, v.error, v.detail
from temp.retried v where v.epoch > 0
on conflict (item, epoch) do nothing

-- name: retry_ready
insert into ready (queue, priority, item, since, epoch, tries, rescues)
select v.queue, v.priority, v.item, ?1, v.epoch, 0, 0 from temp.retried v where v.lane is null

-- name: retry_waiting
insert into waiting (lane, run, priority, item, since, queue, epoch, tries, rescues)
select v.lane, ?1, v.priority, v.item, ?2, v.queue, v.epoch, 0, 0 from temp.retried v where v.lane is not null

-- name: retry_lanes
update lane as l set waiting = l.waiting + n.n
from (select v.lane, count(*) as n from temp.retried v where v.lane is not null group by v.lane) n
where l.id = n.lane

-- name: retry_touch
insert or ignore into temp.touched (lane) select v.lane from temp.retried v where v.lane is not null

-- name: retry_counts
update queue_count as c
set dead = c.dead - n.dead, skipped = c.skipped - n.skipped, cancelled = c.cancelled - n.n + n.dead + n.skipped,
    ready = c.ready + n.n - n.laned, waiting = c.waiting + n.laned
from (select v.queue, count(*) as n, sum(v.state = 'dead') as dead, sum(v.state = 'skipped') as skipped,
             count(v.lane) as laned
      from temp.retried v group by v.queue) n
where c.queue = n.queue

-- name: retry_end
delete from temp.retried

-- name: queue_ids
select k.id from queue k where k.run = ?1 order by k.id

-- name: idle_changes
-- Runs whose idle flag is wrong. A run is idle when there are workers and none of them claims its items.
with live as materialized (select w.scope from worker w where w.state = 'live'),
judged as materialized (
    select r.no, r.idle, exists (select 1 from live) and not exists (
        select 1 from live v
        where coalesce(v.scope ->> '$.scraper', r.scraper) = r.scraper
          and (json_array_length(v.scope, '$.run_ids') = 0
               or exists (select 1 from json_each(v.scope, '$.run_ids') j where j.value = r.id))) as now_idle
    from run r where r.state = 'active'
)
select j.no, j.now_idle from judged j where j.idle <> j.now_idle

-- name: set_idle
update run set idle = ?2, lane_work = iif(?2, 'release', 'readmit'), lane_work_cursor = null where no = ?1

-- name: set_lane_work
update run set lane_work = ?2, lane_work_cursor = ?3 where no = ?1

-- name: lane_work
-- A run's lane work, its cursor, and whether another active run that workers serve waits for lanes.
select r.lane_work, r.lane_work_cursor, exists (
    select 1 from run o indexed by run_active
    cross join queue k on k.run = o.no
    cross join queue_count c on c.queue = k.id
    where o.state = 'active' and not o.idle and o.no <> r.no and c.waiting > 0) as others_wait
from run r where r.no = ?1 and r.state in ('active', 'paused')

-- name: runs_with_lane_work
-- Only those with something to do now; PostgreSQL checks that in apply_lane_work.
select r.no from run r indexed by run_lane_work
where r.lane_work is not null and r.state in ('active', 'paused') and (r.lane_work = 'readmit' or exists (
    select 1 from run o indexed by run_active
    cross join queue k on k.run = o.no
    cross join queue_count c on c.queue = k.id
    where o.state = 'active' and not o.idle and o.no <> r.no and c.waiting > 0))
order by r.no

-- name: lanes_to_readmit
-- The next lanes after this id, as many as admit about as many of the run's items as a step may move:
-- [last id, [id, ...]].
with looked_at as materialized (
    select o.id, o.run, o.allowance from lane_room o where o.id > ?2 order by o.id limit ?3
),
asked as materialized (
    select x.id, x.n, sum(x.n) over (order by x.id) as sum
    from (select o.id, min(o.allowance, l.waiting) as n from looked_at o cross join lane l on l.id = o.id
          where o.allowance > 0 and o.run in (0, ?1)
            and exists (select 1 from waiting w where w.lane = o.id and w.run = ?1)) x
)
select json_array(
    coalesce((select min(a.id) from asked a where a.sum >= ?3), (select max(o.id) from looked_at o)),
    (select json_group_array(a.id) from asked a where a.sum - a.n < ?3))

-- name: replay_ended
-- The item's end: state, epoch, queue, and the id of the replay that it is the result of.
select o.state, o.epoch, o.queue, o.detail ->> 'replay' as replay
from outcome o join run r on r.no = o.run where o.item = ?1 and o.run = ?2 and r.state <> 'removed'

-- name: replay_history
insert into attempt (item, epoch, claimed_at, ended_at, run, worker, seconds, outcome, error, detail)
select o.item, o.epoch, o.claimed_at, o.ended_at, o.run, o.worker, o.seconds, o.outcome, o.error, o.detail
from outcome o where o.item = ?1
on conflict (item, epoch) do nothing

-- name: replay_failure
update failure_group set items = items - 1
where id = (select o.failure from outcome o where o.item = ?1 and o.state = 'dead')

-- name: replay_outcome
update outcome
set epoch = epoch + 1, worker = null, claimed_at = ?2, ended_at = ?2, seconds = ?3, state = 'done', outcome = 'done',
    error = null, detail = json_object('replay', ?4), failure = null
where item = ?1

-- name: replay_renumber
-- The older records get numbers below 0, so that the new ones find theirs free. What is still below 0 when they are
-- stored was not yielded again.
update result set n = -1 - n where run = ?1 and item = ?2

-- name: replay_take
insert into temp.ended (item, run, queue, kind) values (?1, ?2, ?3, 'done')

-- name: replay_drop
delete from result where run = ?1 and item = ?2 and n < 0

-- name: replay_compact
-- Numbers without gaps, so that a reader of the log knows that there are no others. Below 0 first: see replay_renumber.
update result as r set n = -o.place
from (select x.rowid as row, row_number() over (order by x.n) as place from result x where x.run = ?1 and x.item = ?2) o
where r.rowid = o.row

-- name: replay_change
insert into result_change (run, stage, at, records, replaced, items)
select ?1, k.stage, ?3, (select count(*) from result r where r.run = ?1 and r.item = ?2), 1, json_array(?2)
from queue k where k.id = ?4

-- name: replay_counts
update queue_count set results = results - ?2, done = done + ?3, dead = dead - ?3 where queue = ?1

-- name: reactivate_run
-- A run with a retried item, or with new items of a replayed one, becomes active again.
update run set state = 'active', finished_at = null, changed_at = ?2
where no = ?1 and state in ('finished', 'cancelled')
returning id

-- name: unfinished_cancels
-- Runs whose cancel was interrupted between two steps.
select r.no from run r
where r.state = 'cancelled'
  and exists (select 1 from queue k join queue_count c on c.queue = k.id
              where k.run = r.no and c.ready + c.waiting + c.delayed + c.leased > 0)

-- name: open_items_left
select coalesce(sum(c.ready + c.waiting + c.delayed + c.leased), 0)
from queue k join queue_count c on c.queue = k.id where k.run = ?1

-- name: other_runs
select exists (select 1 from run r where r.no <> ?1)

-- name: reset_lanes
update lane set taken = 0, unstarted = 0, waiting = 0 where taken <> 0 or waiting <> 0
