-- Intake. Storing is a function (functions/20_intake.sql); the queues differ from SQLite in lists, arrays here and JSON
-- there.

-- name: make_queues
-- Creates missing queues and widens the range of priorities of the others.
insert into shoal.queue as k (run, stage, partition, priority_min, priority_max)
select s.run, u.stage, u.partition, u.low, u.high
from unnest($1::int[], $2::text[], $3::int[], $4::int[]) as u(stage, partition, low, high)
join shoal.stage s on s.id = u.stage
order by u.stage, u.partition
on conflict (stage, partition) do update
set priority_min = least(k.priority_min, excluded.priority_min),
    priority_max = greatest(k.priority_max, excluded.priority_max)
where excluded.priority_min < k.priority_min or excluded.priority_max > k.priority_max

-- name: find_queues
select k.id, k.stage, k.partition, k.priority_min, k.priority_max
from unnest($1::int[], $2::text[]) as u(stage, partition)
join shoal.queue k on k.stage = u.stage and k.partition = u.partition

-- name: enqueue
select * from shoal.enqueue($1::uuid, $2::int, $3::int[], $4::bytea[], $5::text[], $6::text[], $7::json[], $8::int[],
    $9::int[], $10::float8[], $11::int[], $12::json[], $13::int2[], $14::text[], $15::int[])
