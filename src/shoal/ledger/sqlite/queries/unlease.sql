-- name: unlease_pick
-- Leases to take away, as [item, epoch]; ?2 says how: returned, released or crashed.
-- A first crash makes every lease of the worker a suspect (rescues = 1) because nobody knows which item killed it;
-- after that only items that had been reported as started are counted on. ScalingHistory the run's max_rescues: poison.
-- straight: it keeps its slot and goes straight back, because it has surely not been started. But a paused or idle
-- run keeps no slot in a lane that other runs share.
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

-- name: unlease_buried
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
-- A worker that died or was cut off may have started without saying so: keep the distance from now.
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

-- name: unlease_facts
-- [back, quarantined, how many in lanes].
select json_array(coalesce(sum(not u.poison), 0), coalesce(sum(u.poison), 0), count(u.lane)) from temp.unleased u

-- name: unlease_end
delete from temp.unleased

-- name: reap_bury
update worker set state = 'lost', ended_at = ?1
where state in ('live', 'draining')
  and (no in (select value from json_each(?2)) or beat_at < ?1 - cast(1e6 * lease_seconds as integer))
returning id

-- name: orphaned_leases
-- Leases of workers that are gone, at most ?1; also those that an earlier round left.
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
-- What a worker holds without knowing it: leases of claims that were interrupted on the way to it.
select json_group_array(json_array(s.item, s.epoch)) from lease s
where s.worker = ?1
  and (s.item, s.epoch) not in (select j.value ->> 0, j.value ->> 1 from json_each(?2) j)

-- name: leases_by_age
select json_group_array(json_array(s.item, s.epoch)) from (
    select s.item, s.epoch from lease s where s.claimed_at <= ?1 and (?2 is null or s.run = ?2) limit ?3) s
