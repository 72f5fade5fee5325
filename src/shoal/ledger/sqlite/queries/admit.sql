-- name: admit_pick
-- Let as many items out of `waiting` as the touched lanes allow. Items of a lane with a delay come out a moment before
-- they may start: their workers reserve the starts and wait for them, so no time is lost on the way. Where several runs wait behind one lane they take turns; paused and idle runs' rows are not looked at.
-- SQLite has no LATERAL, so `walk` steps from one waiting item to the next, as far as the allowance goes. The plus in
-- +k.item takes the type off the value: only then does SQLite use the whole key to find the next row.
insert into temp.admitted (item, lane, run, queue, priority, epoch, tries, rescues, due)
with recursive
open as materialized (
    select o.id as lane, r.no as run, o.allowance, o.due
    from temp.touched t
    cross join lane_room o on o.id = t.lane
    cross join run r indexed by run_active on r.state = 'active' and not r.idle
    where o.allowance > 0 and o.run = 0
    union all
    select o.id, r.no, o.allowance, o.due
    from temp.touched t
    cross join lane_room o on o.id = t.lane
    cross join run r on r.no = o.run and r.state = 'active' and not r.idle
    where o.allowance > 0
),
walk (lane, run, priority, item, turn, allowance, due) as (
    select o.lane, o.run,
           (select w.priority from waiting w where w.lane = o.lane and w.run = o.run
            order by w.priority, w.item limit 1),
           (select w.item from waiting w where w.lane = o.lane and w.run = o.run
            order by w.priority, w.item limit 1),
           1, o.allowance, o.due
    from open o
    union all
    select k.lane, k.run,
           (select w.priority from waiting w
            where w.lane = k.lane and w.run = k.run and (w.priority, w.item) > (k.priority, +k.item)
            order by w.priority, w.item limit 1),
           (select w.item from waiting w
            where w.lane = k.lane and w.run = k.run and (w.priority, w.item) > (k.priority, +k.item)
            order by w.priority, w.item limit 1),
           k.turn + 1, k.allowance, k.due
    from walk k where k.turn < k.allowance and k.item is not null
),
ranked as (
    select k.*, row_number() over (partition by k.lane order by k.turn, random()) as place
    from walk k where k.item is not null
)
select w.item, w.lane, w.run, w.queue, w.priority, w.epoch, w.tries, w.rescues, k.due
from ranked k
cross join waiting w on w.lane = k.lane and w.run = k.run and w.priority = k.priority and w.item = k.item
where k.place <= k.allowance

-- name: admit_leave
delete from waiting where (lane, run, priority, item) in (select lane, run, priority, item from temp.admitted)

-- name: admit_ready
insert into ready (queue, priority, item, lane, since, epoch, tries, rescues)
select p.queue, p.priority, p.item, p.lane, ?1, p.epoch, p.tries, p.rescues
from temp.admitted p where p.due <= ?1 order by p.queue, p.priority, p.item

-- name: admit_delayed
insert into delayed (item, lane, due_at, since, run, queue, priority, epoch, tries, rescues, slotted, reason)
select p.item, p.lane, p.due, ?1, p.run, p.queue, p.priority, p.epoch, p.tries, p.rescues, 1, 'lane'
from temp.admitted p where p.due > ?1

-- name: admit_lanes
update lane as l set taken = l.taken + n.n, unstarted = l.unstarted + n.n, waiting = l.waiting - n.n
from (select p.lane, count(*) as n from temp.admitted p group by p.lane) n
where l.id = n.lane

-- name: admit_counts
update queue_count as c
set waiting = c.waiting - n.n, ready = c.ready + n.n - n.put_off, delayed = c.delayed + n.put_off
from (select p.queue, count(*) as n, sum(p.due > ?1) as put_off from temp.admitted p group by p.queue) n
where c.queue = n.queue

-- name: admit_end
delete from temp.admitted

-- name: touch_end
delete from temp.touched

-- name: touch_lanes
insert or ignore into temp.touched (lane) select value from json_each(?1)

-- name: next_lanes_with_room
-- Lanes that could let somebody out but were not asked: after a resume, or a raised limit.
-- Of the next ?2 lanes after the id ?1: [last id or null, how many there were, [those that could let somebody out]].
select json_array(max(x.id), count(*), json_group_array(x.id) filter (where x.has_room)) from (
    select l.id, l.allowance > 0
        and exists (select 1 from run r where r.state = 'active' and not r.idle and (l.run = 0 or l.run = r.no)
                      and exists (select 1 from waiting w where w.lane = l.id and w.run = r.no)) as has_room
    from lane_room l where l.id > ?1 order by l.id limit ?2) x

-- name: ensure_lanes
-- A lane has the policy of the newest stage that named it, until an operator sets something else: two runs with
-- different policies do not pull it to and fro. While the run that named it before is still under way, the stricter of
-- the two holds, because both visit.
insert into lane (run, key, max_active, own_delay_min, own_delay_max, delay_min, delay_max, ordered, declared_by)
select x.run, x.key, x.lane_limit, x.lane_delay_min, x.lane_delay_max, x.lane_delay_min, x.lane_delay_max,
       x.lane_ordered, x.stage
from (
    select n.*, row_number() over (partition by n.run, n.key order by n.stage desc) as pick
    from (
        select case when s.lane_shared then 0 else s.run end as run, j.value ->> 0 as key, s.id as stage,
               s.lane_limit, s.lane_delay_min, s.lane_delay_max, s.lane_ordered
        from json_each(?1) j cross join stage s on s.id = j.value ->> 1
    ) n
) x
where x.pick = 1
  and not exists (select 1 from lane l where l.run = x.run and l.key = x.key
                  and (l.by_operator or l.declared_by >= x.stage))
on conflict (run, key) do update
    set (max_active, own_delay_min, own_delay_max, delay_min, delay_max, ordered, declared_by) = (
        select min(excluded.max_active, coalesce(o.max_active, excluded.max_active)),
               max(excluded.own_delay_min, coalesce(o.delay_min, 0.0)),
               max(excluded.own_delay_max, coalesce(o.delay_max, 0.0)),
               max(excluded.own_delay_min, coalesce(o.delay_min, 0.0), lane.floor),
               max(excluded.own_delay_max, coalesce(o.delay_max, 0.0), lane.floor),
               excluded.ordered, excluded.declared_by
        from (select 1) one
        left join (
            select lane.max_active as max_active, lane.own_delay_min as delay_min, lane.own_delay_max as delay_max
            where exists (select 1 from stage a join run r on r.no = a.run and r.state = 'active' cross join stage n
                          where a.id = lane.declared_by and n.id = excluded.declared_by and a.run <> n.run)
        ) o)

-- name: find_lanes
-- [position in the list asked for, id] of each.
select json_group_array(json_array(j.key, l.id))
from json_each(?1) j
cross join stage s on s.id = j.value ->> 1
cross join lane l on l.run = case when s.lane_shared then 0 else s.run end and l.key = j.value ->> 0
