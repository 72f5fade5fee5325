-- Changes of many items: calls of functions/60_runs.sql. open_items_left adds the count deltas, which SQLite lacks.

-- name: cancel_items
select shoal.cancel_items($1::int, $2::bigint[], $3)

-- name: cancel_open_items
select * from shoal.cancel_open_items($1::int, $2::text, $3::int, $4::bigint[])

-- name: open_items_left
-- From the counts, which are exact.
select coalesce(sum(x.ready + x.waiting + x.delayed + x.leased), 0)::bigint
from shoal.queue k join (
    select c.queue, c.ready, c.waiting, c.delayed, c.leased from shoal.queue_count c
    union all select d.queue, d.ready, d.waiting, d.delayed, d.leased from shoal.count_delta d
) x on x.queue = k.id
where k.run = $1

-- name: retry_items
select shoal.retry_items($1::int, $2::bigint[])

-- name: replay_item
select * from shoal.replay_item($1::int, $2::bigint, $3::int, $4::text, $5::real, $6::bigint[], $7::int[], $8::json[],
    $9::bigint[], $10::int[], $11::bytea[], $12::text[], $13::text[], $14::json[], $15::int[], $16::int[],
    $17::float8[], $18::int[], $19::json[], $20::int2[], $21::text[], $22::int[],
    $23::text[], $24::bytea[], $25::int[], $26::boolean[])

-- name: leases_older_than
select s.item, s.epoch from shoal.lease s
where s.claimed_at <= shoal.clock() - make_interval(secs => $1) and ($2::int is null or s.run = $2)
order by s.item

-- name: apply_lane_work
select shoal.apply_lane_work($1::int, $2::int)

-- name: runs_with_lane_work
select r.no from shoal.run r where r.lane_work is not null and r.state in ('active', 'paused') order by r.no

-- name: idle_changes
select * from shoal.idle_changes()

-- name: set_idle
select shoal.set_idle($1::int, $2::boolean)

-- name: unfinished_cancels
-- Runs whose cancel was interrupted between two steps.
select r.no from shoal.run r join shoal.remaining_items m on m.run = r.no
where r.state = 'cancelled' and m.items > 0

-- name: purge
select shoal.purge($1::int, $2::int, $3::bigint[])

-- name: truncate_if_only_run
select shoal.truncate_if_only_run($1::int)
