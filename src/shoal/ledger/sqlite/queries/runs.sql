-- name: insert_run
insert into run (id, scraper, settings, code_version, key_version, max_attempts, max_rescues, created_at, changed_at,
                 idempotency_key)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9)
on conflict (id) do nothing
returning no

-- name: insert_stages
-- [name, max_attempts, limit, delay_min, delay_max, ordered, shared], in the order they were declared.
insert into stage (run, name, max_attempts, lane_limit, lane_delay_min, lane_delay_max, lane_ordered, lane_shared)
select ?1, j.value ->> 0, j.value ->> 1, j.value ->> 2, j.value ->> 3, j.value ->> 4, j.value ->> 5, j.value ->> 6
from json_each(?2) j

-- name: put_note
insert into run_note (run, name, value, at) values (?1, ?2, ?3, shoal_now())
on conflict (run, name) do update set value = excluded.value, at = excluded.at

-- name: put_first_note
insert into run_note (run, name, value, at) values (?1, ?2, ?3, shoal_now()) on conflict (run, name) do nothing

-- name: get_note
select n.value from run_note n where n.run = ?1 and n.name = ?2

-- name: get_run
select r.no, r.id, r.scraper, r.state, r.sealed, r.settings, r.code_version, r.key_version, r.max_attempts,
       r.max_rescues, r.idempotency_key, r.created_at as "created_at [moment]", r.finished_at as "finished_at [moment]",
       (select json_group_array(s.name) from (select name from stage where run = r.no order by id) s) as stages
from run r where r.id = ?1 and r.state <> 'removed'

-- name: run_by_idempotency_key
select r.id from run r where r.idempotency_key = ?1 and r.state <> 'removed'

-- name: latest_run
select r.id from run r where r.scraper = ?1 and r.state <> 'removed' order by r.no desc limit 1

-- name: list_runs
select r.no, r.id, r.scraper, r.state, r.sealed, r.settings, r.code_version, r.key_version, r.max_attempts,
       r.max_rescues, r.idempotency_key, r.created_at as "created_at [moment]", r.finished_at as "finished_at [moment]",
       (select json_group_array(s.name) from (select name from stage where run = r.no order by id) s) as stages
from run r
where r.state <> 'removed' and (?1 is null or r.scraper = ?1) and (?2 is null or r.no < ?2)
order by r.no desc limit ?3

-- name: seal_run
update run set sealed = 1 where no = ?1 and not sealed

-- name: change_run_state
-- A run that had ended takes items again when it becomes active, until it is sealed again.
update run
set state = ?2, changed_at = ?3, sealed = sealed and not (?2 = 'active' and state in ('finished', 'cancelled')),
    finished_at = case when ?2 in ('finished', 'cancelled') then ?3 end
where no = ?1

-- name: note_event
insert into event (at, run, actor, action, subject, detail) values (shoal_now(), ?1, ?2, ?3, ?4, ?5)

-- name: idle_changes
-- Runs that became idle, or are no longer: there are workers, and none of them takes this run's items.
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
update run set idle = ?2, lane_work = iif(?2, 'give', 'ask'), lane_place = null where no = ?1

-- name: set_lane_work
update run set lane_work = ?2, lane_place = ?3 where no = ?1

-- name: lane_work
-- What is to be done to a run's lanes, how far that is, and whether another run that is worked on waits for lanes.
select r.lane_work, r.lane_place, exists (
    select 1 from run o indexed by run_active
    cross join queue k on k.run = o.no
    cross join queue_count c on c.queue = k.id
    where o.state = 'active' and not o.idle and o.no <> r.no and c.waiting > 0) as others_wait
from run r where r.no = ?1 and r.state in ('active', 'paused')

-- name: runs_with_lane_work
-- Those that have something to do now.
select r.no from run r indexed by run_lane_work
where r.lane_work is not null and r.state in ('active', 'paused') and (r.lane_work = 'ask' or exists (
    select 1 from run o indexed by run_active
    cross join queue k on k.run = o.no
    cross join queue_count c on c.queue = k.id
    where o.state = 'active' and not o.idle and o.no <> r.no and c.waiting > 0))
order by r.no

-- name: look_for_places
-- Paused and idle runs may have got places back in lanes that others share: look again.
update run set lane_work = 'give', lane_place = null
where lane_work is null and (state = 'paused' or (state = 'active' and idle))

-- name: lanes_to_ask
-- The lanes behind this id, as many as let out about as many of the run's items as a step may move: [last id, [id, ...]].
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

-- name: acquire_lock
-- Free, or its taker's time is up, or taken by the same one: then it is the caller's, and a row says so.
insert into lock (name, taken_by, taken_at, until) values (?1, ?2, shoal_now(), shoal_now() + cast(?3 * 1000000 as integer))
on conflict (name) do update set taken_by = excluded.taken_by, taken_at = excluded.taken_at, until = excluded.until
where finished_at is null and (until <= shoal_now() or taken_by = excluded.taken_by)
returning name

-- name: renew_lock
update lock set until = shoal_now() + cast(?3 * 1000000 as integer) where name = ?1 and taken_by = ?2 and finished_at is null
returning name

-- name: complete_lock
-- Said again by the same one, because the answer was lost, it is true again.
update lock set finished_at = coalesce(finished_at, shoal_now()), value = ?3 where name = ?1 and taken_by = ?2
returning name

-- name: release_lock
update lock set until = shoal_now() where name = ?1 and taken_by = ?2 and finished_at is null
returning name

-- name: get_lock
select e.name, e.taken_by, e.taken_at as "taken_at [moment]", e.until as "until [moment]",
       e.finished_at as "finished_at [moment]", e.value
from lock e where e.name = ?1

-- name: list_locks
select e.name, e.taken_by, e.taken_at as "taken_at [moment]", e.until as "until [moment]",
       e.finished_at as "finished_at [moment]", e.value
from lock e where e.name >= ?1 and e.name < ?1 || char(1114111)
order by e.name desc limit ?2

-- name: tidy_locks
delete from lock where finished_at < ?1

-- name: finishable_runs
-- Sealed and nothing left, from the counts alone.
select r.no, r.id from run r
where r.state = 'active' and r.sealed
  and not exists (select 1 from queue k join queue_count c on c.queue = k.id
                  where k.run = r.no and c.ready + c.waiting + c.delayed + c.leased > 0)

-- name: wake_run
-- A retried item brings its run back to life.
update run set state = 'active', finished_at = null, changed_at = ?2
where no = ?1 and state in ('finished', 'cancelled')
returning id

-- name: yield_pick_ready
-- A paused run must not sit on places in lanes that other runs share. These, of one queue: [[priority, id, lane], ...].
insert into temp.yielded (item, lane, queue, priority, epoch, tries, rescues, was_ready)
select y.item, y.lane, y.queue, y.priority, y.epoch, y.tries, y.rescues, 1
from json_each(?2) j
cross join lane l on l.id = j.value ->> 2
cross join ready y on y.queue = ?1 and y.priority = j.value ->> 0 and y.item = j.value ->> 1
where l.run = 0

-- name: yield_pick_delayed
insert into temp.yielded (item, lane, queue, priority, epoch, tries, rescues, was_ready)
select d.item, d.lane, d.queue, d.priority, d.epoch, d.tries, d.rescues, 0
from json_each(?2) j
cross join lane l on l.id = j.value ->> 2
cross join delayed d on d.item = j.value ->> 1
where l.run = 0 and d.slotted and d.queue = ?1

-- name: yield_leave_ready
delete from ready where (queue, priority, item)
    in (select g.queue, g.priority, g.item from temp.yielded g where g.was_ready)

-- name: yield_leave_delayed
delete from delayed where item in (select g.item from temp.yielded g where not g.was_ready)

-- name: yield_waiting
insert into waiting (lane, run, priority, item, since, queue, epoch, tries, rescues)
select g.lane, ?1, g.priority, g.item, ?2, g.queue, g.epoch, g.tries, g.rescues from temp.yielded g

-- name: yield_lanes
update lane as l set taken = l.taken - n.n, unstarted = l.unstarted - n.n, waiting = l.waiting + n.n
from (select g.lane, count(*) as n from temp.yielded g group by g.lane) n
where l.id = n.lane

-- name: yield_touch
insert or ignore into temp.touched (lane) select g.lane from temp.yielded g

-- name: yield_counts
update queue_count as c set waiting = c.waiting + n.n, ready = c.ready - n.ready, delayed = c.delayed - n.n + n.ready
from (select g.queue, count(*) as n, sum(g.was_ready) as ready from temp.yielded g group by g.queue) n
where c.queue = n.queue

-- name: yield_end
delete from temp.yielded

-- name: half_cancelled_runs
-- A cancel that was interrupted between two of its steps.
select r.no from run r
where r.state = 'cancelled'
  and exists (select 1 from queue k join queue_count c on c.queue = k.id
              where k.run = r.no and c.ready + c.waiting + c.delayed + c.leased > 0)

-- name: anything_left
-- Whether a move of many items may have been left half-way.
select exists (select 1 from run r where r.state = 'removed')
    or exists (select 1 from run r indexed by run_lane_work where r.lane_work is not null
                 and r.state in ('active', 'paused') and (r.lane_work = 'ask' or exists (
                     select 1 from run o indexed by run_active
                     cross join queue k on k.run = o.no
                     cross join queue_count c on c.queue = k.id
                     where o.state = 'active' and not o.idle and o.no <> r.no and c.waiting > 0)))
    or exists (select 1 from run r join queue k on k.run = r.no join queue_count c on c.queue = k.id
               where r.state = 'cancelled' and c.ready + c.waiting + c.delayed + c.leased > 0)

-- name: open_items_left
select coalesce(sum(c.ready + c.waiting + c.delayed + c.leased), 0)
from queue k join queue_count c on c.queue = k.id where k.run = ?1

-- name: removed_runs
select r.no from run r where r.state = 'removed' order by r.no

-- name: other_runs
select exists (select 1 from run r where r.no <> ?1)

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

-- name: purge_lanes
delete from lane where id in (select l.id from lane l where l.run = ?1 limit ?2)

-- name: forget_queues
delete from queue where run = ?1

-- name: forget_stages
delete from stage where run = ?1

-- name: forget_notes
delete from run_note where run = ?1

-- name: forget_run
delete from run where no = ?1 and state = 'removed'

-- name: reset_lanes
update lane set taken = 0, unstarted = 0, waiting = 0 where taken <> 0 or waiting <> 0

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

-- name: empty_queue_count
delete from queue_count

-- name: empty_minute_count
delete from minute_count
