-- Moves between waiting, ready and lease that several operations use. On PostgreSQL these are functions/10_admit.sql
-- and functions/50_unlease.sql.

-- name: admit_pick
-- Admit as many items from `waiting` as the touched lanes allow. Items of a lane with a delay are admitted shortly
-- before they may start: their workers reserve the starts and sleep until then, so no time is lost. Runs that wait for
-- the same lane take turns; rows of paused and idle runs are not read. SQLite has no LATERAL, so `walk` steps from one
-- waiting item to the next, up to the allowance. The plus in +k.item removes the affinity of the value: only then does
-- SQLite use the whole key to find the next row.
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
-- Lanes that can admit items although no operation has touched them, such as after a resume or a raised limit.
-- Of the next ?2 lanes after the id ?1: [last id or null, how many lanes, [ids of those that can admit items]].
select json_array(max(x.id), count(*), json_group_array(x.id) filter (where x.has_room)) from (
    select l.id, l.allowance > 0
        and exists (select 1 from run r where r.state = 'active' and not r.idle and (l.run = 0 or l.run = r.no)
                      and exists (select 1 from waiting w where w.lane = l.id and w.run = r.no)) as has_room
    from lane_room l where l.id > ?1 order by l.id limit ?2) x

-- name: ensure_lanes
-- A lane has the policy of the newest stage that named it, until an operator changes it, so that two runs with
-- different policies do not overwrite each other. While the run of the older stage is active, the stricter policy
-- applies, because both runs send requests.
insert into lane (run, key, max_active, own_delay_min, own_delay_max, delay_min, delay_max, ordered, declared_by)
select x.run, x.key, iif(x.free, x.lane_loopback_limit, x.lane_limit), iif(x.free, 0.0, x.lane_delay_min),
       iif(x.free, 0.0, x.lane_delay_max), iif(x.free, 0.0, x.lane_delay_min), iif(x.free, 0.0, x.lane_delay_max),
       x.lane_ordered, x.stage
from (
    select n.*, row_number() over (partition by n.run, n.key order by n.stage desc) as pick
    from (
        select case when s.lane_shared then 0 else s.run end as run, j.value ->> 0 as key, s.id as stage,
               s.lane_limit, s.lane_delay_min, s.lane_delay_max, s.lane_ordered, s.lane_loopback_limit,
               s.lane_loopback_limit is not null and is_loopback_lane(j.value ->> 0) as free
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
-- [position in the given list, id] of each.
select json_group_array(json_array(j.key, l.id))
from json_each(?1) j
cross join stage s on s.id = j.value ->> 1
cross join lane l on l.run = case when s.lane_shared then 0 else s.run end and l.key = j.value ->> 0

-- name: unlease_pick
-- Leases to end, as [item, epoch]; ?2 says how: returned, released or crashed. The first crash counts for every lease
-- of the worker (rescues = 1), because it is unknown which item caused it; later ones count only for items reported as
-- started. Beyond the run's max_rescues the item is poison. straight: the item was certainly not started, so it keeps
-- its slot and returns to ready; but a paused or idle run keeps no slot in a shared lane.
insert or ignore into temp.unleased (item, lane, run, queue, priority, epoch, tries, rescues, claimed_at, started_at,
                                     worker, poison, straight, ordered, next_at, delay_max)
select s.item, s.lane, s.run, s.queue, s.priority, s.epoch, s.tries, s.rescues_now, s.claimed_at, s.started_at,
       s.worker, ?2 = 'crashed' and s.rescues_now > n.max_rescues,
       s.lane is null or (s.started_at is null and (?2 = 'returned' or l.delay_max = 0)
                          and (l.run <> 0 or (n.state = 'active' and not n.idle))),
       coalesce(l.ordered, 0), l.next_at, l.delay_max
from (
    select s.*, case when ?2 <> 'crashed' then s.rescues
                     when s.rescues = 0 or s.started_at is not null then s.rescues + 1
                     else s.rescues end as rescues_now
    from json_each(?1) j cross join lease s on s.item = j.value ->> 0 and s.epoch = j.value ->> 1
) s
cross join run n on n.no = s.run
left join lane l on l.id = s.lane

-- name: unlease_leave
delete from lease where item in (select u.item from temp.unleased u)

-- name: unlease_attempts
insert into attempt (item, epoch, claimed_at, ended_at, run, worker, seconds, outcome, error)
select u.item, u.epoch, u.claimed_at, ?1, u.run, u.worker,
       max(0, (?1 - coalesce(u.started_at, u.claimed_at)) / 1e6), ?2, ?3
from temp.unleased u where not u.poison

-- name: unlease_quarantined
insert into outcome (item, claimed_at, ended_at, run, queue, epoch, worker, seconds, tries, rescues, state, outcome,
                     error)
select u.item, u.claimed_at, ?1, u.run, u.queue, u.epoch, u.worker, 0, u.tries, u.rescues, 'dead', 'poison',
       'Quarantined: ' || u.rescues || ' workers died while they held it. Last: ' || coalesce(?2, '?')
from temp.unleased u where u.poison

-- name: unlease_ready
insert into ready (queue, priority, item, lane, since, epoch, tries, rescues)
select u.queue, u.priority, u.item, u.lane, ?1, u.epoch, u.tries, u.rescues
from temp.unleased u where not u.poison and u.straight

-- name: unlease_delayed
insert into delayed (item, lane, due_at, since, run, queue, priority, epoch, tries, rescues, slotted, reason)
select u.item, u.lane, max(?1 + cast(1e6 * u.delay_max as integer), coalesce(u.next_at, 0)), ?1, u.run, u.queue,
       u.priority, u.epoch, u.tries, u.rescues, 1, 'lane'
from temp.unleased u where not u.poison and not u.straight and u.ordered

-- name: unlease_waiting
insert into waiting (lane, run, priority, item, since, queue, epoch, tries, rescues)
select u.lane, u.run, u.priority, u.item, ?1, u.queue, u.epoch, u.tries, u.rescues
from temp.unleased u where not u.poison and not u.straight and not u.ordered

-- name: unlease_touch
insert or ignore into temp.touched (lane) select u.lane from temp.unleased u where u.lane is not null

-- name: unlease_lanes
-- A worker that died or lost its lease may have started without reporting it: the delay counts from now.
update lane as l
set taken = l.taken - n.left_lane,
    unstarted = l.unstarted - n.left_unstarted + n.held_again,
    waiting = l.waiting + n.back,
    next_at = case when l.delay_max > 0 and ?2 <> 'returned'
                   then max(coalesce(l.next_at, 0), ?1 + cast(1e6 * (
                       l.delay_min + (random() & 0xffffffff) / 4294967295.0 * (l.delay_max - l.delay_min)) as integer))
                   else l.next_at end
from (
    select u.lane,
           sum(u.poison or not (u.straight or u.ordered)) as left_lane,
           sum((u.poison or not (u.straight or u.ordered)) and u.started_at is null) as left_unstarted,
           sum(not u.poison and u.ordered and u.started_at is not null) as held_again,
           sum(not u.poison and not (u.straight or u.ordered)) as back
    from temp.unleased u where u.lane is not null group by u.lane
) n
where l.id = n.lane

-- name: unlease_counts
update queue_count as c
set leased = c.leased - n.n, dead = c.dead + n.poison, ready = c.ready + n.straight, delayed = c.delayed + n.put_off,
    waiting = c.waiting + n.n - n.poison - n.straight - n.put_off
from (
    select u.queue, count(*) as n, sum(u.poison) as poison, sum(not u.poison and u.straight) as straight,
           sum(not u.poison and not u.straight and u.ordered) as put_off
    from temp.unleased u group by u.queue
) n
where c.queue = n.queue

-- name: unlease_minutes
insert into minute_count (minute, queue, worker, dead)
select ?1 - ?1 % 60000000, u.queue, u.worker, sum(u.poison) from temp.unleased u where true group by u.queue, u.worker
on conflict (minute, queue, worker) do update set dead = dead + excluded.dead

-- name: unlease_activity
insert into run_activity (run, step, at, dead)
select u.run, 60, ?1 - ?1 % 60000000, count(*) from temp.unleased u where u.poison group by u.run
on conflict (run, step, at) do update set dead = dead + excluded.dead

-- name: unlease_summary
-- [returned, quarantined, how many in lanes].
select json_array(coalesce(sum(not u.poison), 0), coalesce(sum(u.poison), 0), count(u.lane)) from temp.unleased u

-- name: unlease_end
delete from temp.unleased

-- name: declare_lost
update worker set state = 'lost', ended_at = ?1
where state in ('live', 'draining')
  and (no in (select value from json_each(?2)) or heartbeat_at < ?1 - cast(1e6 * lease_seconds as integer))
returning id

-- name: orphaned_leases
-- Leases of stopped and lost workers, at most ?1, including those that an earlier round left.
select 'Worker ' || x.id || ' was ' || x.state || '.' as reason,
       json_group_array(json_array(x.item, x.epoch)) as leases, count(*) as leased
from (
    select s.item, s.epoch, w.no, w.id, w.state from lease s join worker w on w.no = s.worker
    where w.state in ('stopped', 'lost') limit ?1
) x
group by x.no

-- name: leases_of_worker
select json_group_array(json_array(s.item, s.epoch)) from lease s where s.worker = ?1

-- name: leases_unknown
-- Leases that a worker does not know of, from claims whose answer was lost.
select json_group_array(json_array(s.item, s.epoch)) from lease s
where s.worker = ?1
  and (s.item, s.epoch) not in (select j.value ->> 0, j.value ->> 1 from json_each(?2) j)

-- name: leases_by_age
select json_group_array(json_array(s.item, s.epoch)) from (
    select s.item, s.epoch from lease s where s.claimed_at <= ?1 and (?2 is null or s.run = ?2) limit ?3) s
