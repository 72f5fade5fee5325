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

-- name: rank_lanes
select shoal.rank_lanes($1::int)

-- name: run_lanes
select shoal.run_lanes($1::int, $2::int) as lanes

-- name: walk_lanes
select * from shoal.walk_lanes($1::int, $2::text, $3::text, $4::int)

-- name: lanes_by_name
-- Of these lanes the next by name; a lane of a run comes after the shared one of the same name.
select l.*, r.id as run_id,
       greatest(0, extract(epoch from l.blocked_until - shoal.clock()))::float8 as blocked_seconds,
       greatest(0, extract(epoch from l.next_at - shoal.clock()))::float8 as next_seconds
from unnest($1::bigint[]) as u(id)
cross join lateral (select l.* from shoal.lane l where l.id = u.id limit 1) l
left join shoal.run r on r.no = l.run
where l.key >= $2 and l.key < $3 and ($4::text is null or (l.key, l.run) > ($4, $5::int))
order by l.key, l.run limit $6

-- name: lanes_from
-- Lanes of a run, or shared ones, by name.
select l.*, r.id as run_id,
       greatest(0, extract(epoch from l.blocked_until - shoal.clock()))::float8 as blocked_seconds,
       greatest(0, extract(epoch from l.next_at - shoal.clock()))::float8 as next_seconds
from (select l.* from shoal.lane l where l.run = $1 and l.key >= $2 and l.key < $3 and ($4::text is null or l.key > $4)
      order by l.run, l.key limit $5) l
left join shoal.run r on r.no = l.run
order by l.key

-- name: slow_lanes
-- Ranked lanes: those of the run $1, the shared ones that it waits for, and others that it waits for, with what they take
-- now in milliseconds. $1 = 0: the shared ones.
select x.*
from (
    select l.*, r.id as run_id,
           greatest(0, extract(epoch from l.blocked_until - shoal.clock()))::float8 as blocked_seconds,
           greatest(0, extract(epoch from l.next_at - shoal.clock()))::float8 as next_seconds,
           (1000 * shoal.lane_seconds(l, shoal.clock()))::bigint as place
    from (
        select y.lane from (select s.lane from shoal.slow_lane s where s.run = $1::int
                            order by s.seconds desc, s.lane limit $2::int) y
        union
        select y.lane from (select s.lane from shoal.slow_lane s
                            where $1 <> 0 and s.run = 0
                              and exists (select 1 from shoal.waiting w where w.lane = s.lane and w.run = $1 limit 1)
                            order by s.seconds desc, s.lane limit $2) y
        union
        select u.id from unnest(shoal.busy_lanes($1)) as u(id)
    ) c
    cross join lateral (select l.* from shoal.lane l where l.id = c.lane limit 1) l
    left join shoal.run r on r.no = l.run
    where l.waiting > 0 and l.key >= $3 and l.key < $4
) x
where $5::bigint is null or (x.place, x.id) < ($5, $6::bigint)
order by x.place desc, x.id desc limit $7

-- name: lane_counts
select * from shoal.lane_counts($1::int, $2::bigint[], $3::int)

-- name: lane_leases
-- Leased items of these lanes, of a run or of all. There are few leases, and no index on their lanes.
select s.lane, count(*) as leased from shoal.lease s
where s.lane = any ($2::bigint[]) and ($1::int is null or s.run = $1) group by s.lane

-- name: lane_spans
select * from shoal.lane_spans($1::int, $2::bigint[], shoal.clock() - make_interval(mins => $3::int), $4::int)

-- name: ranked_seconds_ago
select extract(epoch from shoal.clock() - t.at)::float8 from shoal.tick t where t.name = 'slow_lanes'
