-- Claims. On PostgreSQL these are functions (functions/30_claim.sql); open_queues differs in lists, JSON here and
-- arrays there, and in the count deltas.

-- name: open_queues
-- Only queues with ready items, by the counts. The last column is the priority of the first item, looked up only where
-- a queue has several priorities.
select k.id, r.no, r.id, s.name, k.partition, coalesce(s.max_attempts, r.max_attempts), k.priority_min, k.priority_max,
       case when k.priority_min = k.priority_max then k.priority_min
            else coalesce((select y.priority from ready y where y.queue = k.id order by y.priority, y.item limit 1),
                          k.priority_max) end
from run r
join queue k on k.run = r.no
join stage s on s.id = k.stage
join queue_count c on c.queue = k.id
where r.state = 'active'
  and (?1 is null or r.scraper = ?1)
  and (?2 is null or r.id in (select value from json_each(?2)))
  and (?3 is null or s.name in (select value from json_each(?3)))
  and (?4 is null or k.partition in (select value from json_each(?4)))
  and c.ready > 0

-- name: first_priorities
-- The first items without claiming them: for runs whose queues have different priorities.
select (select json_group_array(x.priority)
        from (select y.priority from ready y where y.queue = j.value order by y.priority, y.item limit ?2) x)
from json_each(?1) j

-- name: claim_heartbeat
-- A claim counts as a heartbeat. It also decides the race with the reaper: the first one wins.
update worker set heartbeat_at = ?2 where no = ?1 and state in ('live', 'draining')

-- name: claim_pick
-- The first rows of a queue as one JSON text: see scratch/tables.sql for why. The last columns: deferred (the row
-- may not start soon, because its lane was paused or blocked after it became ready, others have reserved starts since,
-- or too many became ready before the lane had a delay or a lower limit), paced (the lane has a delay), and since when
-- it was ready.
select json_group_array(json_array(
    y.item, y.epoch + 1, y.queue, y.priority, y.tries, y.rescues, i.max_attempts, l.key, i.url, i.key, i.payload,
    i.request, i.depth,
    case when l.paused or l.blocked_until > ?3 or l.taken + l.slots_granted > l.max_active then 1
         when l.delay_max > 0 then (select o.due > ?3 or l.unstarted > o.ahead from lane_room o where o.id = l.id)
         else 0 end,
    coalesce(l.delay_max > 0, 0), (?3 - y.since) / 1e6))
from (
    select y.item, y.epoch, y.queue, y.priority, y.tries, y.rescues, y.lane, y.since
    from ready y
    where y.queue = ?1
      and exists (select 1 from queue k join run r on r.no = k.run where k.id = ?1 and r.state = 'active')
    order by y.priority, y.item limit ?2
) y
cross join item i on i.id = y.item
left join lane l on l.id = y.lane

-- name: claim_lease
-- All but the deferred items ?6, [item, ...].
insert into lease (item, lane, claimed_at, epoch, worker, run, queue, priority, tries, rescues, paced)
select y.item, y.lane, ?3, y.epoch + 1, ?4, ?5, y.queue, y.priority, y.tries, y.rescues, coalesce(l.delay_max > 0, 0)
from (select * from ready where queue = ?1 order by priority, item limit ?2) y
left join lane l on l.id = y.lane
where ?6 = '[]' or y.item not in (select value from json_each(?6))

-- name: claim_defer
-- Deferred items keep their slot and become ready again within seconds, so that lifting a block need not change these
-- rows.
insert into delayed (item, lane, due_at, since, run, queue, priority, epoch, tries, rescues, slotted, reason)
select y.item, y.lane,
       case when l.paused then ?3 + 2000000
            when coalesce(l.blocked_until, 0) > ?3 then min(l.blocked_until, ?3 + 10000000)
            else max(?3, min(coalesce(l.next_at, 0) - 100000, ?3 + 10000000)) end,
       ?3, ?4, y.queue, y.priority, y.epoch, y.tries, y.rescues, 1, 'lane'
from (select * from ready where queue = ?1 order by priority, item limit ?2) y
cross join lane l on l.id = y.lane
where y.item in (select value from json_each(?5))

-- name: claim_leave
delete from ready where queue = ?1 and (priority, item) <= (?2, ?3)

-- name: claim_counts
update queue_count set ready = ready - ?2, leased = leased + ?3, delayed = delayed + ?4 where queue = ?1

-- name: started_pick
insert or ignore into temp.started (item, lane)
select s.item, s.lane
from json_each(?1) j cross join lease s on s.item = j.value ->> 0 and s.epoch = j.value ->> 1
where s.started_at is null

-- name: started_touch
insert or ignore into temp.touched (lane)
select s.lane from json_each(?1) j cross join lease s on s.item = j.value ->> 0 where s.lane is not null

-- name: started_mark
update lease set started_at = ?1 where item in (select b.item from temp.started b)

-- name: started_lanes
update lane as l
set unstarted = l.unstarted - n.n,
    next_at = case when l.delay_max > 0
                   then max(coalesce(l.next_at, 0), ?1 + cast(1e6 * (
                       l.delay_min + (random() & 0xffffffff) / 4294967295.0 * (l.delay_max - l.delay_min)) as integer))
                   else l.next_at end
from (select b.lane, count(*) as n from temp.started b where b.lane is not null group by b.lane) n
where l.id = n.lane

-- name: started_end
delete from temp.started

-- name: leases_held
select json_group_array(s.item)
from json_each(?1) j cross join lease s on s.item = j.value ->> 0 and s.epoch = j.value ->> 1

-- name: anything_due
select exists (select 1 from delayed d where d.due_at <= clock())

-- name: promote_pick
-- Items that are due: to ready if they have a slot or no lane, otherwise to waiting (in_line). A paused run loses its
-- slots in shared lanes. So do items of a lane that has too many unstarted items admitted, from before it had a delay or
-- a lower limit: they are admitted again in order.
insert into temp.promoted (item, lane, run, queue, priority, epoch, tries, rescues, slotted, in_line)
select d.item, d.lane, d.run, d.queue, d.priority, d.epoch, d.tries, d.rescues, d.slotted,
       d.lane is not null
       and (not d.slotted or (l.run = 0 and (r.state <> 'active' or r.idle))
            or (l.delay_max > 0 and l.unstarted > 1 + cast(min(1e6, 0.1 / l.delay_max) as integer))
            or l.taken + l.slots_granted > l.max_active)
from (select * from delayed where due_at <= ?1 order by due_at limit ?2) d
cross join run r on r.no = d.run
left join lane l on l.id = d.lane

-- name: promote_leave
delete from delayed where item in (select p.item from temp.promoted p)

-- name: promote_ready
insert into ready (queue, priority, item, lane, since, epoch, tries, rescues)
select p.queue, p.priority, p.item, p.lane, ?1, p.epoch, p.tries, p.rescues
from temp.promoted p where not p.in_line order by p.queue, p.priority, p.item

-- name: promote_waiting
insert into waiting (lane, run, priority, item, since, queue, epoch, tries, rescues)
select p.lane, p.run, p.priority, p.item, ?1, p.queue, p.epoch, p.tries, p.rescues
from temp.promoted p where p.in_line

-- name: promote_lanes
update lane as l set waiting = l.waiting + n.n, taken = l.taken - n.slotted, unstarted = l.unstarted - n.slotted
from (select p.lane, count(*) as n, sum(p.slotted) as slotted from temp.promoted p where p.in_line group by p.lane) n
where l.id = n.lane

-- name: promote_touch
insert or ignore into temp.touched (lane) select p.lane from temp.promoted p where p.in_line

-- name: promote_counts
update queue_count as c
set delayed = c.delayed - n.n, ready = c.ready + n.n - n.in_line, waiting = c.waiting + n.in_line
from (select p.queue, count(*) as n, sum(p.in_line) as in_line from temp.promoted p group by p.queue) n
where c.queue = n.queue

-- name: promote_end
delete from temp.promoted
