-- Lanes and host slots. On PostgreSQL changes are functions (functions/70_lanes.sql).

-- name: make_shared_lane
insert into lane (run, key, max_active, own_delay_min, own_delay_max, delay_min, delay_max, ordered)
values (0, ?1, 1, 0, 0, 0, 0, 0)
on conflict (run, key) do nothing

-- name: declare_lane
insert into lane (run, key, max_active, own_delay_min, own_delay_max, delay_min, delay_max, ordered)
values (0, ?1, 1, ?2, ?3, ?2, ?3, 0)
on conflict (run, key) do update
set own_delay_min = ?2, own_delay_max = ?3, delay_min = max(?2, floor), delay_max = max(?3, floor)
where not delay_fixed and (own_delay_min <> ?2 or own_delay_max <> ?3)

-- name: find_lane
select l.id, l.delay_max > 0 as paced from lane l where l.run = ?1 and l.key = ?2

-- name: set_lane
-- Change what is not null. What an operator has set is not changed by stages later.
update lane
set max_active = coalesce(?2, max_active), own_delay_min = coalesce(?3, own_delay_min),
    own_delay_max = coalesce(?4, own_delay_max), delay_min = coalesce(?3, delay_min),
    delay_max = coalesce(?4, delay_max), delay_fixed = delay_fixed or ?3 is not null,
    paused = coalesce(?5, paused), by_operator = by_operator or ?2 is not null or ?3 is not null
where id = ?1

-- name: set_delay_floor
update lane
set floor = ?2, floor_why = ?3, delay_min = case when delay_fixed then delay_min else max(own_delay_min, ?2) end,
    delay_max = case when delay_fixed then delay_max else max(own_delay_max, ?2) end
where id = ?1 and (floor <> ?2 or floor_why is not ?3)

-- name: retime_lane
-- A lane's delay was changed. A shorter delay applies at once. The first delay of a lane counts from now if items of
-- the lane are leased: their requests may start at any moment without a reservation. Items admitted before are deferred
-- when they are claimed. ?2: whether the lane had a delay before.
update lane
set next_at = case
    when next_at > ?3 + cast(1e6 * delay_max as integer) then ?3 + cast(1e6 * delay_max as integer)
    when delay_max > 0 and not ?2 and exists (select 1 from lease s where s.lane = lane.id)
    then max(coalesce(next_at, 0), ?3 + cast(1e6 * (
        delay_min + (random() & 0xffffffff) / 4294967295.0 * (delay_max - delay_min)) as integer))
    else next_at end
where id = ?1

-- name: retime_delayed
-- Delayed items with a slot become due when their lane may start again, sooner or later than before.
update delayed as d set due_at = max(?2, o.due)
from lane_room o
where o.id = ?1 and d.lane = ?1 and d.slotted and d.reason = 'lane' and d.due_at <> max(?2, o.due)

-- name: lane_starts
-- What a reservation needs of a lane. ?3 is the worker.
select l.id, l.delay_min, l.delay_max, coalesce(l.blocked_until, 0) as blocked_until, coalesce(l.next_at, 0) as next_at,
       l.handover, coalesce(l.next_by = ?3, 0) as is_mine, coalesce(l.run_from, 0) as run_from
from lane l where l.run = ?1 and l.key = ?2

-- name: reserve_leases
-- Mark the leases [item, epoch] that get a start.
update lease as s set started_at = ?2
from json_each(?1) j
where s.item = j.value ->> 0 and s.epoch = j.value ->> 1 and s.started_at is null and s.lane = ?3

-- name: reserve_starts
update lane
set unstarted = unstarted - ?2, next_at = coalesce(?3, next_at), handover = ?5,
    run_from = case when next_by = ?4 then run_from else ?6 end, next_by = ?4
where id = ?1

-- name: host_lane
-- The lane of a host that a stage's requests go to. It is created with the stage's policy; an existing lane gets the
-- policy of the newest stage that named it, or the stricter one while the run of the older stage is active.
insert into lane (run, key, max_active, own_delay_min, own_delay_max, delay_min, delay_max, ordered, declared_by)
select 0, ?2, iif(s.free, s.lane_loopback_limit, s.lane_limit), iif(s.free, 0.0, s.lane_delay_min),
       iif(s.free, 0.0, s.lane_delay_max), iif(s.free, 0.0, s.lane_delay_min), iif(s.free, 0.0, s.lane_delay_max),
       0, s.id
from (select g.*, g.lane_loopback_limit is not null and is_loopback_lane(?2) as free from stage g where g.id = ?1) s
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

-- name: host_lane_state
select l.id, l.max_active - l.taken - l.slots_granted as free, l.delay_max > 0 as paced, l.paused, l.blocked_why,
       coalesce(l.blocked_until, 0) as blocked_until
from lane l where l.run = 0 and l.key = ?1

-- name: is_worker_live
select exists (select 1 from worker where no = ?1 and state in ('live', 'draining'))

-- name: find_slot
select v.granted, v.since from host_slot v where v.id = ?1

-- name: insert_slot
insert into host_slot (id, lane, since, worker, granted) values (?1, ?2, ?3, ?4, 0)

-- name: slots_ahead
select count(*) from host_slot v where v.lane = ?1 and not v.granted and (v.since, v.id) < (?2, ?3)

-- name: grant_slot
update host_slot set granted = 1 where id = ?1

-- name: count_slots
-- Called after any change of a lane's slots.
update lane set slots_granted = (select count(*) from host_slot v where v.lane = lane.id and v.granted),
                slots_wanted = (select count(*) from host_slot v where v.lane = lane.id and not v.granted)
where id in (select value from json_each(?1))

-- name: lanes_of_slots
select json_group_array(distinct v.lane) from host_slot v where v.id in (select value from json_each(?1))

-- name: slots_of_worker
select json_group_array(v.id) from host_slot v where v.worker = ?1

-- name: orphaned_slots
select json_group_array(v.id) from host_slot v join worker w on w.no = v.worker where w.state in ('stopped', 'lost')

-- name: delete_slots
delete from host_slot where id in (select value from json_each(?1))

-- name: block_host
update lane set blocked_until = ?2, blocked_why = ?3 where id = ?1 and coalesce(blocked_until, 0) < ?2

-- name: block_lane
update lane set blocked_until = ?2, blocked_why = ?3 where id = ?1

-- name: get_lanes
-- Seconds instead of times, because the caller's clock may differ.
select l.*, r.id as run_id, max(0.0, (l.blocked_until - clock()) / 1e6) as blocked_seconds,
       max(0.0, (l.next_at - clock()) / 1e6) as next_seconds
from lane l left join run r on r.no = l.run
where l.run = ?1 and (?2 is null or l.key = ?2) and (?3 is null or l.key > ?3)
order by l.key limit ?4

-- name: clock_seconds
select clock() / 1e6

-- name: lane_ranks
-- The slowest lanes with waiting items, ?1 of each run and of the shared lanes: [[lane, run, seconds], ...]. It reads
-- all lanes. The estimate is that of functions/78_lane_lists.sql.
select json_group_array(json_array(x.id, x.run, x.seconds)) from (
    select e.id, e.run, e.seconds, row_number() over (partition by e.run order by e.seconds desc, e.id) as place
    from (select l.id, l.run, l.waiting * max((l.delay_min + l.delay_max) / 2, 1.0 / l.max_active)
                              + max(0.0, coalesce((l.blocked_until - clock()) / 1e6, 0.0)) as seconds
          from lane l where l.waiting > 0) e) x
where x.place <= ?1

-- name: rank_lanes_tick
update tick set at = ?1 where name = 'slow_lanes'

-- name: rank_lanes_drop
delete from slow_lane where lane not in (select j.value ->> 0 from json_each(?1) j)

-- name: rank_lanes_put
insert into slow_lane (lane, run, seconds) select j.value ->> 0, j.value ->> 1, j.value ->> 2 from json_each(?1) j
where true on conflict (lane) do update set seconds = excluded.seconds where seconds <> excluded.seconds

-- name: run_lanes
-- Lanes that items of the run ?1 use, by id; at most ?2.
with recursive x(lane) as (
    select (select i.lane from item i indexed by item_lane where i.run = ?1 and i.lane is not null
            order by i.lane limit 1)
    union all
    select (select i.lane from item i indexed by item_lane where i.run = ?1 and i.lane is not null and i.lane > x.lane
            order by i.lane limit 1)
    from x where x.lane is not null limit ?2 + 1
)
select json_group_array(y.lane) as lanes from (select x.lane from x where x.lane is not null limit ?2) y

-- name: walk_lanes
-- The shared lanes that the run ?1 uses, by name: of the next ?4 shared lanes those with items of the run.
with seen as materialized (
    select l.id, l.key from lane l where l.run = 0 and l.key >= ?2 and l.key < ?3 order by l.key limit ?4
)
select (select json_group_array(f.id) from (
            select w.id from seen w
            where exists (select 1 from item i indexed by item_lane where i.run = ?1 and i.lane = w.id)
            order by w.key) f) as lanes, count(*) as seen, max(w.key) as last_key
from seen w

-- name: lanes_by_name
-- Of these lanes the next by name; a lane of a run comes after the shared one of the same name.
select l.*, r.id as run_id, max(0.0, (l.blocked_until - clock()) / 1e6) as blocked_seconds,
       max(0.0, (l.next_at - clock()) / 1e6) as next_seconds
from json_each(?1) u
cross join lane l on l.id = u.value
left join run r on r.no = l.run
where l.key >= ?2 and l.key < ?3 and (?4 is null or (l.key, l.run) > (?4, ?5))
order by l.key, l.run limit ?6

-- name: lanes_from
-- Lanes of a run, or shared ones, by name.
select l.*, r.id as run_id, max(0.0, (l.blocked_until - clock()) / 1e6) as blocked_seconds,
       max(0.0, (l.next_at - clock()) / 1e6) as next_seconds
from lane l left join run r on r.no = l.run
where l.run = ?1 and l.key >= ?2 and l.key < ?3 and (?4 is null or l.key > ?4)
order by l.key limit ?5

-- name: slow_lanes
-- Ranked lanes: those of the run ?1, the shared ones that it waits for, and others that it waits for, with what they take
-- now in milliseconds. ?1 = 0: the shared ones.
with recursive ends as materialized (
    select k.id as queue, 1 + 500 / (select count(*) from queue x where x.run = ?1) as each,
           (select min(w.item) from waiting w indexed by waiting_queue where w.queue = k.id) as first,
           (select max(w.item) from waiting w indexed by waiting_queue where w.queue = k.id) as last
    from queue k where k.run = ?1
),
point (queue, each, first, last, n) as (
    select e.queue, e.each, e.first, e.last, 0 from ends e where e.first is not null
    union all
    select p.queue, p.each, p.first, p.last, p.n + 1 from point p where p.n < p.each
),
candidate as materialized (
    select y.lane from (select s.lane from slow_lane s where s.run = ?1 order by s.seconds desc, s.lane limit ?2) y
    union
    select y.lane from (select s.lane from slow_lane s
                        where ?1 <> 0 and s.run = 0
                          and exists (select 1 from waiting w where w.lane = s.lane and w.run = ?1)
                        order by s.seconds desc, s.lane limit ?2) y
    union
    select (select w.lane from waiting w indexed by waiting_queue
            where w.queue = p.queue and w.item >= p.first + (p.last - p.first) * p.n / p.each
            order by w.item limit 1)
    from point p
)
select x.*
from (
    select l.*, r.id as run_id, max(0.0, (l.blocked_until - clock()) / 1e6) as blocked_seconds,
           max(0.0, (l.next_at - clock()) / 1e6) as next_seconds,
           cast(1000 * (l.waiting * max((l.delay_min + l.delay_max) / 2, 1.0 / l.max_active)
                        + max(0.0, coalesce((l.blocked_until - clock()) / 1e6, 0.0))) as integer) as place
    from candidate c cross join lane l on l.id = c.lane left join run r on r.no = l.run
    where l.waiting > 0 and l.key >= ?3 and l.key < ?4
) x
where ?5 is null or (x.place, x.id) < (?5, ?6)
order by x.place desc, x.id desc limit ?7

-- name: lane_counts
-- The items of a run in each of these lanes by where they are, counted up to ?3 each; run null: of all runs, without the
-- total. alone: no other run waits for the lane.
select l.id as lane,
       ?1 is null or not (exists (select 1 from waiting w where w.lane = l.id and w.run < ?1)
                          or exists (select 1 from waiting w where w.lane = l.id and w.run > ?1)) as alone,
       case when ?1 is null then l.waiting else (
           select count(*) from (select 1 from waiting w where w.lane = l.id and w.run = ?1 limit ?3)) end as waiting,
       (select count(*) from (select 1 from delayed d indexed by delayed_lane
                              where d.lane = l.id and d.slotted = 1 limit ?3)) as slotted,
       (select count(*) from (select 1 from delayed d indexed by delayed_lane
                              where d.lane = l.id and d.slotted = 0 limit ?3)) as unslotted,
       case when ?1 is not null then (
           select count(*) from (select 1 from item i indexed by item_lane
                                 where i.run = ?1 and i.lane = l.id limit ?3)) end as total
from json_each(?2) u cross join lane l on l.id = u.value

-- name: lane_leases
-- Leased items of these lanes, of a run or of all. There are few leases, and no index on their lanes.
select s.lane, count(*) as leased from lease s
where s.lane in (select value from json_each(?2)) and (?1 is null or s.run = ?1) group by s.lane

-- name: lane_spans
-- Recent attempts on items of these lanes: of those before the first item that nobody has claimed, the last ones.
with head as materialized (
    select u.value as lane,
           (select min(w.item) from (select x.item, x.epoch from waiting x where x.lane = u.value and x.run = ?1
                                     order by x.priority, x.item limit 200) w where w.epoch = 0) as item
    from json_each(?2) u
),
recent as materialized (
    select h.lane, i.id, coalesce(i.key, i.url) as name
    from head h cross join item i on i.id in (
        select x.id from item x indexed by item_lane
        where x.run = ?1 and x.lane = h.lane and x.id < coalesce(h.item, 9223372036854775807)
        order by x.id desc limit 2 * ?4)
),
span as (
    select i.lane, i.id, i.name, max(o.claimed_at, o.ended_at - cast(1e6 * o.seconds as integer)) as began_at,
           o.ended_at, iif(o.state = 'done', 'done', o.outcome) as outcome
    from recent i cross join outcome o on o.item = i.id
    where o.ended_at > clock() - 60000000 * ?3 and o.epoch > 0 and (o.state <> 'cancelled' or o.worker is not null)
    union all
    select i.lane, i.id, i.name, max(t.claimed_at, t.ended_at - cast(1e6 * t.seconds as integer)), t.ended_at, t.outcome
    from recent i cross join attempt t on t.item = i.id
    where t.ended_at > clock() - 60000000 * ?3
    union all
    select i.lane, i.id, i.name, coalesce(z.started_at, z.claimed_at), null, null
    from recent i cross join lease z on z.item = i.id
)
select x.lane, x.id as item, x.name, x.began_at as "began_at [moment]", x.ended_at as "ended_at [moment]", x.outcome
from (select s.*, row_number() over (partition by s.lane order by s.began_at desc) as place from span s) x
where x.place <= ?4

-- name: ranked_seconds_ago
select (clock() - t.at) / 1e6 from tick t where t.name = 'slow_lanes'
