-- name: drop_ready
-- Items of a run to end as cancelled, [id, ...], wherever they stand: first noted, place by place, then moved.
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

-- name: queues_of_run
select k.id from queue k where k.run = ?1 order by k.id

-- name: some_leased
-- The next items of a queue that stand in one table, behind a priority and an id: [[priority, id, lane], ...].
select json_group_array(json_array(x.priority, x.item, x.lane)) from (
    select s.priority, s.item, s.lane from lease s where s.queue = ?1 and s.item > ?3 order by s.item limit ?4) x

-- name: some_delayed
-- The lane only of those that have a place in it.
select json_group_array(json_array(x.priority, x.item, x.lane)) from (
    select d.priority, d.item, iif(d.slotted, d.lane, null) as lane from delayed d indexed by delayed_queue
    where d.queue = ?1 and d.item > ?3 order by d.item limit ?4) x

-- name: some_waiting
select json_group_array(json_array(x.priority, x.item, x.lane)) from (
    select w.priority, w.item, w.lane from waiting w indexed by waiting_queue
    where w.queue = ?1 and w.item > ?3 order by w.item limit ?4) x

-- name: some_ready
select json_group_array(json_array(x.priority, x.item, x.lane)) from (
    select y.priority, y.item, y.lane from ready y
    where y.queue = ?1 and (y.priority, y.item) > (?2, ?3) order by y.priority, y.item limit ?4) x

-- name: revive_pick
-- Another life for dead or cancelled items: tries and rescues start anew, the epoch goes on.
insert into temp.revived (item, lane, queue, priority, epoch, state, worker, claimed_at, ended_at, seconds, outcome,
                          error, detail)
select o.item, i.lane, o.queue, i.priority, o.epoch, o.state, o.worker, o.claimed_at, o.ended_at, o.seconds, o.outcome,
       o.error, o.detail
from json_each(?2) j
cross join outcome o on o.item = j.value and o.run = ?1 and o.state in ('dead', 'cancelled')
cross join item i on i.id = o.item

-- name: revive_leave
delete from outcome where item in (select v.item from temp.revived v)

-- name: revive_history
-- Their end becomes an ordinary attempt. An item cancelled before anybody claimed it has none to keep.
insert into attempt (item, epoch, claimed_at, ended_at, run, worker, seconds, outcome, error, detail)
select v.item, v.epoch, v.claimed_at, v.ended_at, ?1, v.worker, v.seconds, v.outcome, v.error, v.detail
from temp.revived v where v.epoch > 0
on conflict (item, epoch) do nothing

-- name: revive_ready
insert into ready (queue, priority, item, since, epoch, tries, rescues)
select v.queue, v.priority, v.item, ?1, v.epoch, 0, 0 from temp.revived v where v.lane is null

-- name: revive_waiting
insert into waiting (lane, run, priority, item, since, queue, epoch, tries, rescues)
select v.lane, ?1, v.priority, v.item, ?2, v.queue, v.epoch, 0, 0 from temp.revived v where v.lane is not null

-- name: revive_lanes
update lane as l set waiting = l.waiting + n.n
from (select v.lane, count(*) as n from temp.revived v where v.lane is not null group by v.lane) n
where l.id = n.lane

-- name: revive_touch
insert or ignore into temp.touched (lane) select v.lane from temp.revived v where v.lane is not null

-- name: revive_counts
update queue_count as c
set dead = c.dead - n.dead, cancelled = c.cancelled - n.n + n.dead, ready = c.ready + n.n - n.laned,
    waiting = c.waiting + n.laned
from (select v.queue, count(*) as n, sum(v.state = 'dead') as dead, count(v.lane) as laned
      from temp.revived v group by v.queue) n
where c.queue = n.queue

-- name: revive_end
delete from temp.revived

-- name: make_shared_lane
insert into lane (run, key, max_active, own_delay_min, own_delay_max, delay_min, delay_max, ordered)
values (0, ?1, 1, 0, 0, 0, 0, 0)
on conflict (run, key) do nothing

-- name: lane_facts
select l.id, l.delay_max > 0 as paced from lane l where l.run = ?1 and l.key = ?2

-- name: set_lane
-- Set what is not null. A lane that an operator has set keeps that whatever stages declare later.
update lane
set max_active = coalesce(?2, max_active), own_delay_min = coalesce(?3, own_delay_min),
    own_delay_max = coalesce(?4, own_delay_max), delay_min = coalesce(?3, delay_min),
    delay_max = coalesce(?4, delay_max), delay_fixed = delay_fixed or ?3 is not null, paused = coalesce(?5, paused), by_operator = by_operator or ?2 is not null or ?3 is not null
where id = ?1

-- name: slow_lane
update lane
set floor = ?2, floor_why = ?3, delay_min = case when delay_fixed then delay_min else max(own_delay_min, ?2) end,
    delay_max = case when delay_fixed then delay_max else max(own_delay_max, ?2) end
where id = ?1 and (floor <> ?2 or floor_why is not ?3)

-- name: retime_lane
-- A lane's delay was changed. A shorter one counts at once. One that is new counts from now if items of the lane are
-- leased: their requests leave unheard of, any moment. What was let out before is held back when it is claimed.
-- ?2 says whether the lane kept a distance before.
update lane
set next_at = case
    when next_at > ?3 + cast(1e6 * delay_max as integer) then ?3 + cast(1e6 * delay_max as integer)
    when delay_max > 0 and not ?2 and exists (select 1 from lease s where s.lane = lane.id)
    then max(coalesce(next_at, 0), ?3 + cast(1e6 * (
        delay_min + (random() & 0xffffffff) / 4294967295.0 * (delay_max - delay_min)) as integer))
    else next_at end
where id = ?1

-- name: retime_delayed
-- Items that were let out to wait for their lane wait until it may start again: sooner or later than before.
update delayed as d set due_at = max(?2, o.due)
from lane_room o
where o.id = ?1 and d.lane = ?1 and d.slotted and d.reason = 'lane' and d.due_at <> max(?2, o.due)

-- name: lane_starts
-- What a reservation needs to know of a lane. ?3 is the worker who asks.
select l.id, l.delay_min, l.delay_max, coalesce(l.blocked_until, 0) as blocked_until, coalesce(l.next_at, 0) as next_at,
       l.handover, coalesce(l.next_by = ?3, 0) as is_mine, coalesce(l.run_from, 0) as run_from
from lane l where l.run = ?1 and l.key = ?2

-- name: reserve_leases
-- The leases [item, epoch] that get a start now.
update lease as s set started_at = ?2
from json_each(?1) j
where s.item = j.value ->> 0 and s.epoch = j.value ->> 1 and s.started_at is null and s.lane = ?3

-- name: reserve_starts
update lane
set unstarted = unstarted - ?2, next_at = coalesce(?3, next_at), handover = ?5,
    run_from = case when next_by = ?4 then run_from else ?6 end, next_by = ?4
where id = ?1

-- name: host_lane
-- The lane of a host that a stage's requests go to: made with the stage's policy if it is not there; if it is, it has the
-- policy of the newest stage that named it, or the stricter one while the older one's run is under way.
insert into lane (run, key, max_active, own_delay_min, own_delay_max, delay_min, delay_max, ordered, declared_by)
select 0, ?2, s.lane_limit, s.lane_delay_min, s.lane_delay_max, s.lane_delay_min, s.lane_delay_max, 0, s.id
from stage s
where s.id = ?1
  and not exists (select 1 from lane l where l.run = 0 and l.key = ?2 and (l.by_operator or l.declared_by >= ?1))
on conflict (run, key) do update
    set (max_active, own_delay_min, own_delay_max, delay_min, delay_max, declared_by) = (
        select min(excluded.max_active, coalesce(o.max_active, excluded.max_active)),
               max(excluded.own_delay_min, coalesce(o.delay_min, 0.0)),
               max(excluded.own_delay_max, coalesce(o.delay_max, 0.0)),
               max(excluded.own_delay_min, coalesce(o.delay_min, 0.0), lane.floor),
               max(excluded.own_delay_max, coalesce(o.delay_max, 0.0), lane.floor),
               excluded.declared_by
        from (select 1) one
        left join (
            select lane.max_active as max_active, lane.own_delay_min as delay_min, lane.own_delay_max as delay_max
            where exists (select 1 from stage a join run r on r.no = a.run and r.state = 'active' cross join stage n
                          where a.id = lane.declared_by and n.id = excluded.declared_by and a.run <> n.run)
        ) o)

-- name: visited_lane
select l.id, l.max_active - l.taken - l.visiting as free, l.delay_max > 0 as paced, l.paused, l.blocked_why,
       coalesce(l.blocked_until, 0) as blocked_until
from lane l where l.run = 0 and l.key = ?1

-- name: is_worker_live
select exists (select 1 from worker where no = ?1 and state in ('live', 'draining'))

-- name: find_visit
select v.entered, v.since from visit v where v.id = ?1

-- name: want_visit
insert into visit (id, lane, since, worker, entered) values (?1, ?2, ?3, ?4, 0)

-- name: visits_before
select count(*) from visit v where v.lane = ?1 and not v.entered and (v.since, v.id) < (?2, ?3)

-- name: enter_visit
update visit set entered = 1 where id = ?1

-- name: count_visits
-- After any change of a lane's visits.
update lane set visiting = (select count(*) from visit v where v.lane = lane.id and v.entered),
                wanted = (select count(*) from visit v where v.lane = lane.id and not v.entered)
where id in (select value from json_each(?1))

-- name: lanes_of_visits
select json_group_array(distinct v.lane) from visit v where v.id in (select value from json_each(?1))

-- name: visits_of_worker
select json_group_array(v.id) from visit v where v.worker = ?1

-- name: orphaned_visits
select json_group_array(v.id) from visit v join worker w on w.no = v.worker where w.state in ('stopped', 'lost')

-- name: drop_visits
delete from visit where id in (select value from json_each(?1))

-- name: close_host
update lane set blocked_until = ?2, blocked_why = ?3 where id = ?1 and coalesce(blocked_until, 0) < ?2

-- name: block_lane
update lane set blocked_until = ?2, blocked_why = ?3 where id = ?1

-- name: get_lanes
-- Seconds, not times: the caller's clock must not be needed to understand them.
select l.*, r.id as run_id, max(0.0, (l.blocked_until - shoal_now()) / 1e6) as blocked_seconds,
       max(0.0, (l.next_at - shoal_now()) / 1e6) as next_seconds
from lane l left join run r on r.no = l.run
where l.run = ?1 and (?2 is null or l.key = ?2) and (?3 is null or l.key > ?3)
order by l.key limit ?4

-- name: put_setting
insert into setting (scope, value, set_by, set_at) values (?1, ?2, ?3, shoal_now()) returning version

-- name: get_setting
select s.version, s.value from setting s where s.scope = ?1 order by s.version desc limit 1

-- name: ticks_due
-- Which upkeep has not been done for its interval, {"name": microseconds}. A time far ahead is a clock that was set.
select k.name from json_each(?1) j cross join tick k on k.name = j.key
where k.at <= shoal_now() - j.value or k.at > shoal_now() + j.value

-- name: take_tick
-- True for one caller per interval.
update tick set at = ?2 where name = ?1 and (at <= ?2 - ?3 or at > ?2 + ?3)

-- name: tick_place
select k.place from tick k where k.name = ?1

-- name: set_tick_place
update tick set place = ?2 where name = ?1

-- name: tidy_minutes
delete from minute_count where (minute, queue, worker)
    in (select m.minute, m.queue, m.worker from minute_count m where m.minute < ?1 limit ?2)

-- name: next_due
-- Only the first of all delayed items are looked at: when none of them is of this scope, nothing of it comes due before
-- the last of them.
select (coalesce(min(x.due_at) filter (where x.ours), case when count(*) = ?5 then max(x.due_at) end)
        - shoal_now()) / 1e6
from (
    select d.due_at, r.state = 'active' and (?1 is null or r.scraper = ?1)
                     and (?2 is null or r.id in (select value from json_each(?2)))
                     and (?3 is null or s.name in (select value from json_each(?3)))
                     and (?4 is null or k.partition in (select value from json_each(?4))) as ours
    from (select d.due_at, d.queue from delayed d order by d.due_at limit ?5) d
    cross join queue k on k.id = d.queue
    cross join stage s on s.id = k.stage
    cross join run r on r.no = k.run
) x

-- name: last_seen
-- The latest moment that the ledger has noted: workers beat, upkeep ticks, people act.
select max(coalesce((select max(beat_at) from worker), 0), coalesce((select max(at) from tick), 0),
           coalesce((select at from event order by id desc limit 1), 0))

-- name: clock_offset
select c.offset from clock c where c.boot = ?1

-- name: set_clock_offset
insert into clock (boot, offset) values (?1, ?2) on conflict (boot) do update set offset = excluded.offset

-- name: lane_clock
select shoal_now() / 1e6
