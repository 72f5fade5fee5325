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
select l.*, r.id as run_id, max(0.0, (l.blocked_until - clock()) / 1e6) as blocked_seconds,
       max(0.0, (l.next_at - clock()) / 1e6) as next_seconds
from lane l left join run r on r.no = l.run
where l.run = ?1 and (?2 is null or l.key = ?2) and (?3 is null or l.key > ?3)
order by l.key limit ?4

-- name: lane_clock
select clock() / 1e6
