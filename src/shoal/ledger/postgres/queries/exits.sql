-- Exits: calls of functions/71_exits.sql, and reads, which differ from SQLite in the arithmetic of times. Seconds instead
-- of times, because the caller's clock may differ.

-- name: exit_member_list
-- Whether a worker's list is stored already: then registering it again writes nothing.
select m.list from shoal.exit_member m join shoal.exit_pool p on p.name = m.pool
where m.pool = $1 and m.worker = $2 and p.kind = $3

-- name: register_exits
select shoal.register_exits($1::int, $2, $3, $4, $5::text[], $6::text[], $7::boolean)

-- name: report_exits
select shoal.report_exits($1::int, $2, $3::bigint, $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[],
    $9::boolean[], $10::boolean[], $11::text[], $12::text[], $13::bigint[], $14::bigint[], $15::bigint[], $16::text[],
    $17::int, $18::float8, $19::int, $20::float8, $21::int)

-- name: start_trial
select shoal.start_trial($1::int, $2, $3, $4::float8)

-- name: end_bans
select shoal.end_bans($1, $2::text[])

-- name: set_exit
select shoal.set_exit($1, $2, $3, $4::float8, $5, $6)

-- name: tidy_exits
select shoal.tidy_exits($1::float8, $2::int)

-- name: pool_changes
-- What changed since a time; a millisecond earlier, because a time as a number is not exact.
select extract(epoch from p.changed_at)::float8 as at,
    array(select w.id from shoal.exit_member m join shoal.worker w on w.no = m.worker
          where m.pool = p.name and w.state in ('live', 'draining') order by w.id collate "C") as members,
    (select coalesce(json_agg(json_build_array(
                e.key, shoal.exit_state(e.state, e.until, shoal.clock()),
                extract(epoch from e.until - shoal.clock()), extract(epoch from e.trial_until - shoal.clock()), e.why)), '[]')
     from shoal.exit e
     where e.pool = p.name and e.changed_at is not null
       and e.changed_at >= to_timestamp($2::float8) - interval '1 millisecond') as exits,
    (select coalesce(json_agg(json_build_array(
                e.key, h.host, coalesce(extract(epoch from h.blocked_until - shoal.clock()), 0))), '[]')
     from shoal.exit_host h join shoal.exit e on e.id = h.exit
     where h.pool = p.name and h.changed_at is not null
       and h.changed_at >= to_timestamp($2::float8) - interval '1 millisecond') as blocks
from shoal.exit_pool p where p.name = $1

-- name: pool_state
-- All listed exits that are not good, and all blocks.
select extract(epoch from p.changed_at)::float8 as at,
    array(select w.id from shoal.exit_member m join shoal.worker w on w.no = m.worker
          where m.pool = p.name and w.state in ('live', 'draining') order by w.id collate "C") as members,
    (select coalesce(json_agg(json_build_array(
                e.key, shoal.exit_state(e.state, e.until, shoal.clock()),
                extract(epoch from e.until - shoal.clock()), extract(epoch from e.trial_until - shoal.clock()), e.why)), '[]')
     from shoal.exit e
     where e.pool = p.name and e.unlisted_at is null and e.state <> 'good'
       and shoal.exit_state(e.state, e.until, shoal.clock()) <> 'good') as exits,
    (select coalesce(json_agg(json_build_array(
                e.key, h.host, extract(epoch from h.blocked_until - shoal.clock()))), '[]')
     from shoal.exit_host h join shoal.exit e on e.id = h.exit
     where h.pool = p.name and h.blocked_until is not null and h.blocked_until > shoal.clock()
       and e.unlisted_at is null) as blocks
from shoal.exit_pool p where p.name = $1

-- name: list_pools
-- Good exits are the listed ones that are not in another state: they are not counted.
select p.name as pool, p.kind, p.listed as exits,
       coalesce(x.banned, 0) as banned, coalesce(x.resting, 0) as resting, coalesce(x.trial, 0) as trial,
       extract(epoch from x.first_back - shoal.clock())::float8 as first_back,
       (select count(*) from shoal.exit_member m join shoal.worker w on w.no = m.worker
        where m.pool = p.name and w.state in ('live', 'draining')) as members
from shoal.exit_pool p
cross join lateral (
    select count(*) filter (where s.now = 'banned') as banned, count(*) filter (where s.now = 'resting') as resting,
           count(*) filter (where s.now = 'trial') as trial,
           min(s.until) filter (where s.now in ('banned', 'resting')) as first_back
    from (select e.until, shoal.exit_state(e.state, e.until, shoal.clock()) as now from shoal.exit e
          where e.pool = p.name and e.unlisted_at is null and e.state <> 'good') s
) x
where p.listed > 0
order by p.name

-- name: list_exits
select e.*, p.kind, shoal.exit_state(e.state, e.until, shoal.clock()) as state_now,
       extract(epoch from e.until - shoal.clock())::float8 as until_seconds,
       extract(epoch from e.trial_until - shoal.clock())::float8 as trial_seconds,
       extract(epoch from shoal.clock() - e.used_at)::float8 as used_seconds
from shoal.exit e join shoal.exit_pool p on p.name = e.pool
where e.unlisted_at is null and (e.pool, e.label, e.key) > ($2, $3, $4)
  and e.pool <= coalesce($1, U&'\+10FFFF')
  and ($5::text is null or shoal.exit_state(e.state, e.until, shoal.clock()) = $5)
order by e.pool, e.label, e.key limit $6

-- name: list_exits_not_good
-- Few of many are banned or rest: an index has only them.
select e.*, p.kind, shoal.exit_state(e.state, e.until, shoal.clock()) as state_now,
       extract(epoch from e.until - shoal.clock())::float8 as until_seconds,
       extract(epoch from e.trial_until - shoal.clock())::float8 as trial_seconds,
       extract(epoch from shoal.clock() - e.used_at)::float8 as used_seconds
from shoal.exit e join shoal.exit_pool p on p.name = e.pool
where e.unlisted_at is null and e.state <> 'good' and (e.pool, e.label, e.key) > ($2, $3, $4)
  and e.pool <= coalesce($1, U&'\+10FFFF')
  and shoal.exit_state(e.state, e.until, shoal.clock()) = $5
order by e.pool, e.label, e.key limit $6

-- name: get_exit
select e.*, p.kind, shoal.exit_state(e.state, e.until, shoal.clock()) as state_now,
       extract(epoch from e.until - shoal.clock())::float8 as until_seconds,
       extract(epoch from e.trial_until - shoal.clock())::float8 as trial_seconds,
       extract(epoch from shoal.clock() - e.used_at)::float8 as used_seconds
from shoal.exit e join shoal.exit_pool p on p.name = e.pool
where e.pool = $1 and e.key = $2

-- name: exit_hosts
select h.host, h.succeeded, h.blocked, h.blocks_in_row, h.error,
       greatest(0, coalesce(extract(epoch from h.blocked_until - shoal.clock()), 0))::float8 as blocked_seconds
from shoal.exit_host h where h.exit = $1
order by h.blocked_until is not null and h.blocked_until > shoal.clock() desc, h.blocked desc, h.host limit $2

-- name: exit_matrix
-- Blocks of a pool: the $2 most blocked hosts, and the $3 exits that are blocked most there, by the newest blocks.
with recent as materialized (
    select h.exit, h.host, h.blocked, h.succeeded, h.blocked_until, h.blocked_until > shoal.clock() as is_now
    from shoal.exit_host h where h.pool = $1 and h.blocked_until is not null
    order by h.blocked_until desc limit 3000
),
hosts as materialized (
    select s.host, row_number() over (order by count(*) filter (where s.is_now) desc, sum(s.blocked) desc, s.host) as place
    from recent s group by s.host order by place limit $2::int
),
exits as materialized (
    select s.exit, row_number() over (order by count(*) filter (where s.is_now) desc, sum(s.blocked) desc, s.exit) as place
    from recent s join hosts t on t.host = s.host join shoal.exit e on e.id = s.exit and e.unlisted_at is null
    group by s.exit order by place limit $3::int
)
select e.key, e.label, shoal.exit_state(e.state, e.until, shoal.clock()) as state, t.host, h.blocked, h.succeeded,
       case when h.blocked_until > shoal.clock() then extract(epoch from h.blocked_until - shoal.clock())::float8 end as until,
       x.place as exit_place, t.place as host_place
from exits x
cross join hosts t
join shoal.exit_host h on h.exit = x.exit and h.host = t.host
join shoal.exit e on e.id = x.exit
order by x.place, t.place
