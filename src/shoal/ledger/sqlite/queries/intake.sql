-- Intake. On PostgreSQL storing is a function (functions/20_intake.sql); the queues differ in lists, JSON here and
-- arrays there.

-- name: make_queues
-- Creates missing queues and widens the range of priorities of the others.
insert into queue (run, stage, partition, priority_min, priority_max)
select s.run, s.id, json_extract(?2, '$[' || j.key || ']'), json_extract(?3, '$[' || j.key || ']'),
       json_extract(?4, '$[' || j.key || ']')
from json_each(?1) j cross join stage s on s.id = j.value
where true
order by 2, 3
on conflict (stage, partition) do update
set priority_min = min(priority_min, excluded.priority_min), priority_max = max(priority_max, excluded.priority_max)
where excluded.priority_min < priority_min or excluded.priority_max > priority_max

-- name: find_queues
select k.id, k.stage, k.partition, k.priority_min, k.priority_max
from json_each(?1) j
cross join queue k on k.stage = j.value and k.partition = json_extract(?2, '$[' || j.key || ']')

-- name: reserve_items
update counter set value = value + ?1 where name = 'item' returning value

-- name: store_urls
-- Items with nothing but a URL. The hashes are one blob, 32 bytes each, because JSON has no blobs.
insert into item (id, run, stage, queue, priority, created_at, key_hash, url)
select ?1 + j.key, ?2, ?3, ?4, 0, ?5, substr(?6, 1 + 32 * j.key, 32), j.value
from json_each(?7) j where true
on conflict (stage, key_hash) do nothing

-- name: store_items
-- Any items, as [queue, stage, url, key, payload, lane, priority, delay, max_attempts, parent, request,
-- depth].
insert into item (id, run, stage, queue, priority, created_at, lane, parent, not_before, max_attempts, key_hash, key,
                  url, payload, request, depth)
select ?1 + j.key, k.run, j.value ->> 1, k.id, j.value ->> 6, ?2, j.value ->> 5, j.value ->> 9,
       case when j.value ->> 7 > 0 then ?2 + (j.value ->> 7) end, j.value ->> 8, substr(?3, 1 + 32 * j.key, 32),
       j.value ->> 3, j.value ->> 2, j.value ->> 4, j.value ->> 10, j.value ->> 11
from json_each(?4) j cross join queue k on k.id = j.value ->> 0 where true
on conflict (stage, key_hash) do nothing

-- name: intake_ready
insert into ready (queue, priority, item, since, epoch, tries, rescues)
select i.queue, i.priority, i.id, ?3, 0, 0, 0
from item i where i.id between ?1 and ?2 and i.lane is null and i.not_before is null

-- name: intake_delayed
insert into delayed (item, lane, due_at, since, run, queue, priority, epoch, tries, rescues, slotted, reason)
select i.id, i.lane, i.not_before, ?3, i.run, i.queue, i.priority, 0, 0, 0, 0, 'not_before'
from item i where i.id between ?1 and ?2 and i.not_before is not null

-- name: intake_waiting
insert into waiting (lane, run, priority, item, since, queue, epoch, tries, rescues)
select i.lane, i.run, i.priority, i.id, ?3, i.queue, 0, 0, 0
from item i where i.id between ?1 and ?2 and i.lane is not null and i.not_before is null

-- name: intake_lanes
update lane as l set waiting = l.waiting + n.n
from (select i.lane, count(*) as n from item i
      where i.id between ?1 and ?2 and i.lane is not null and i.not_before is null group by i.lane) n
where l.id = n.lane

-- name: intake_counts
-- ?3: how many were enqueued into each queue; those that are not new are duplicates.
insert into queue_count (queue, ready, waiting, delayed, duplicates)
select cast(j.key as integer), coalesce(f.n - f.waiting - f.delayed, 0), coalesce(f.waiting, 0),
       coalesce(f.delayed, 0), j.value - coalesce(f.n, 0)
from json_each(?3) j
left join (
    select i.queue, count(*) as n, sum(i.not_before is not null) as delayed,
           sum(i.not_before is null and i.lane is not null) as waiting
    from item i where i.id between ?1 and ?2 group by i.queue
) f on f.queue = cast(j.key as integer)
where true
on conflict (queue) do update
set ready = ready + excluded.ready, waiting = waiting + excluded.waiting, delayed = delayed + excluded.delayed,
    duplicates = duplicates + excluded.duplicates
