-- Lanes and host slots: calls of functions/70_lanes.sql. get_lanes differs from SQLite in the arithmetic of times.

-- name: set_lane
select shoal.set_lane($1::int, $2, $3::int, $4::real, $5::real, $6::boolean, $7)

-- name: block_lane
select shoal.block_lane($1::int, $2, $3::float8, $4, $5)

-- name: declare_lane
insert into shoal.lane as l (run, key, max_active, own_delay_min, own_delay_max, delay_min, delay_max, ordered)
values (0, $1, 1, $2::real, $3::real, $2::real, $3::real, false)
on conflict (run, key) do update
set own_delay_min = $2::real, own_delay_max = $3::real,
    delay_min = greatest($2::real, l.floor), delay_max = greatest($3::real, l.floor)
where not l.delay_fixed and (l.own_delay_min <> $2::real or l.own_delay_max <> $3::real)

-- name: set_delay_floor
select shoal.set_delay_floor($1::int, $2, $3::float8, $4)

-- name: clock_seconds
select extract(epoch from shoal.clock())::float8

-- name: reserve
select * from shoal.reserve($1::int, $2, $3::int, $4::bigint[], $5::int[], $6::int, $7::float8, $8::float8, $9::float8)

-- name: request_slot
select * from shoal.request_slot($1::int, $2::int, $3, $4::bigint)

-- name: release_slots
select shoal.release_slots($1::bigint[])

-- name: block_host
select shoal.block_host($1::int, $2, $3::float8, $4)

-- name: get_lanes
-- Seconds instead of times, because the caller's clock may differ.
select l.*, r.id as run_id,
       greatest(0, extract(epoch from l.blocked_until - shoal.clock()))::float8 as blocked_seconds,
       greatest(0, extract(epoch from l.next_at - shoal.clock()))::float8 as next_seconds
from shoal.lane l left join shoal.run r on r.no = l.run
where l.run = $1 and ($2::text is null or l.key = $2) and ($3::text is null or l.key > $3)
order by l.key limit $4
