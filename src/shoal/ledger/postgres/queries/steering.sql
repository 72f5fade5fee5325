-- name: create_run
select shoal.create_run($1::uuid, $2, $3::json, $4, $5, $6::int, $7::int, $8::int, $9::text[], $10::int[], $11::int[],
    $12::real[], $13::real[], $14::boolean[], $15::boolean[])

-- name: put_note
insert into shoal.run_note (run, name, value, at) values ($1, $2, $3::json, shoal.clock())
on conflict (run, name) do update set value = excluded.value, at = excluded.at

-- name: put_first_note
insert into shoal.run_note (run, name, value, at) values ($1, $2, $3::json, shoal.clock())
on conflict (run, name) do nothing

-- name: get_note
select n.value from shoal.run_note n where n.run = $1 and n.name = $2

-- name: get_run
select r.*, array(select s.name from shoal.stage s where s.run = r.no order by s.id) as stages
from shoal.run r where r.id = $1 and r.state <> 'removed'

-- name: run_by_idempotency_key
select r.id from shoal.run r where r.idempotency_key = $1 and r.state <> 'removed'

-- name: latest_run
select r.id from shoal.run r where r.scraper = $1 and r.state <> 'removed' order by r.no desc limit 1

-- name: list_runs
select r.*, array(select s.name from shoal.stage s where s.run = r.no order by s.id) as stages
from shoal.run r
where r.state <> 'removed' and ($1::text is null or r.scraper = $1) and ($2::int is null or r.no < $2)
order by r.no desc limit $3

-- name: seal_run
with sealed as (
    update shoal.run r set sealed = true where r.no = $1 and not r.sealed returning r.no, r.id
)
insert into shoal.event (at, run, actor, action, subject, detail)
select shoal.clock(), s.no, $2, 'run.sealed', s.id, '{}' from sealed s

-- name: set_run_state
select shoal.set_run_state($1::int, $2, $3::text[], $4)

-- name: settle_lanes
select shoal.settle_lanes($1::int, $2::int)

-- name: cancel_open_items
select * from shoal.cancel_open_items($1::int, $2::text, $3::int, $4::bigint[])

-- name: open_items_left
-- By the counts, which are exact.
select coalesce(sum(x.ready + x.waiting + x.delayed + x.leased), 0)::bigint
from shoal.queue k join (
    select c.queue, c.ready, c.waiting, c.delayed, c.leased from shoal.queue_count c
    union all select d.queue, d.ready, d.waiting, d.delayed, d.leased from shoal.count_delta d
) x on x.queue = k.id
where k.run = $1

-- name: truncate_if_alone
select shoal.truncate_if_alone($1::int)

-- name: purge
select shoal.purge($1::int, $2::int, $3::bigint[])

-- name: leases_older_than
select s.item, s.epoch from shoal.lease s
where s.claimed_at <= shoal.clock() - make_interval(secs => $1) and ($2::int is null or s.run = $2)
order by s.item

-- name: retry_items
select shoal.retry_items($1::int, $2::bigint[])

-- name: cancel_items
select shoal.cancel_items($1::int, $2::bigint[], $3)

-- name: note_event
insert into shoal.event (at, run, actor, action, subject, detail) values (shoal.clock(), $1, $2, $3, $4, $5::json)

-- name: acquire_lock
-- Free, or its taker's time is up, or taken by the same one: then it is the caller's, and a row says so.
insert into shoal.lock as e (name, taken_by, taken_at, until)
values ($1, $2, shoal.clock(), shoal.clock() + make_interval(secs => $3))
on conflict (name) do update set taken_by = excluded.taken_by, taken_at = excluded.taken_at, until = excluded.until
where e.finished_at is null and (e.until <= shoal.clock() or e.taken_by = excluded.taken_by)
returning e.name

-- name: renew_lock
update shoal.lock e set until = shoal.clock() + make_interval(secs => $3)
where e.name = $1 and e.taken_by = $2 and e.finished_at is null
returning e.name

-- name: complete_lock
-- Said again by the same one, because the answer was lost, it is true again.
update shoal.lock e set finished_at = coalesce(e.finished_at, shoal.clock()), value = $3::json
where e.name = $1 and e.taken_by = $2
returning e.name

-- name: release_lock
update shoal.lock e set until = shoal.clock() where e.name = $1 and e.taken_by = $2 and e.finished_at is null
returning e.name

-- name: get_lock
select e.* from shoal.lock e where e.name = $1

-- name: list_locks
select e.* from shoal.lock e where e.name >= $1 and e.name < $1 || U&'\+10FFFF' order by e.name desc limit $2

-- name: set_lane
select shoal.set_lane($1::int, $2, $3::int, $4::real, $5::real, $6::boolean, $7)

-- name: block_lane
select shoal.block_lane($1::int, $2, $3::float8, $4, $5)

-- name: slow_lane
select shoal.slow_lane($1::int, $2, $3::float8, $4)

-- name: lane_clock
select extract(epoch from shoal.clock())::float8

-- name: reserve
select * from shoal.reserve($1::int, $2, $3::int, $4::bigint[], $5::int[], $6::int, $7::float8, $8::float8, $9::float8)

-- name: enter
select * from shoal.enter($1::int, $2::int, $3, $4::bigint)

-- name: leave
select shoal.leave($1::bigint[])

-- name: close_host
select shoal.close_host($1::int, $2, $3::float8, $4)

-- name: get_lanes
-- Seconds, not times: the caller's clock must not be needed to understand them.
select l.*, r.id as run_id,
       greatest(0, extract(epoch from l.blocked_until - shoal.clock()))::float8 as blocked_seconds,
       greatest(0, extract(epoch from l.next_at - shoal.clock()))::float8 as next_seconds
from shoal.lane l left join shoal.run r on r.no = l.run
where l.run = $1 and ($2::text is null or l.key = $2) and ($3::text is null or l.key > $3)
order by l.key limit $4

-- name: put_setting
insert into shoal.setting (scope, value, set_by, set_at) values ($1, $2::json, $3, shoal.clock()) returning version

-- name: get_setting
select s.version, s.value from shoal.setting s where s.scope = $1 order by s.version desc limit 1

-- name: tick_due
select shoal.tick_due($1, $2::float8)

-- name: fold_counts
select shoal.fold_counts($1::int)

-- name: idle_changes
select * from shoal.idle_changes()

-- name: set_idle
select shoal.set_idle($1::int, $2::boolean)

-- name: sweep_step
select * from shoal.sweep_step($1::int)

-- name: finish_runs
select shoal.finish_runs()

-- name: half_cancelled_runs
-- A cancel that was interrupted between two of its steps.
select r.no from shoal.run r join shoal.remaining_items m on m.run = r.no
where r.state = 'cancelled' and m.items > 0

-- name: runs_with_lane_work
select r.no from shoal.run r where r.lane_work is not null and r.state in ('active', 'paused') order by r.no

-- name: look_for_places
-- Paused and idle runs may have got places back in lanes that others share: look again.
update shoal.run r set lane_work = 'give', lane_place = null
where r.lane_work is null and (r.state = 'paused' or (r.state = 'active' and r.idle))

-- name: removed_runs
select r.no from shoal.run r where r.state = 'removed' order by r.no

-- name: tidy
-- Receipts matter for minutes, per-minute figures for days, locks for a schedule that comes once a year. At most so many
-- of each at a time; how many there were.
with old_receipts as (
    delete from shoal.receipt x where x.ctid = any (array(
        select y.ctid from shoal.receipt y where y.at < shoal.clock() - interval '1 day' limit $1::int)) returning 1
),
old_claims as (
    delete from shoal.void_claim x where x.ctid = any (array(
        select y.ctid from shoal.void_claim y where y.at < shoal.clock() - interval '1 day' limit $1)) returning 1
),
old_minutes as (
    delete from shoal.minute_count x where x.ctid = any (array(
        select y.ctid from shoal.minute_count y where y.minute < shoal.clock() - interval '8 days' limit $1))
    returning 1
),
old_locks as (
    delete from shoal.lock x where x.ctid = any (array(
        select y.ctid from shoal.lock y where y.finished_at < shoal.clock() - interval '400 days' limit $1))
    returning 1
)
select greatest((select count(*) from old_receipts), (select count(*) from old_claims),
                (select count(*) from old_minutes), (select count(*) from old_locks))

-- name: next_due
-- Only the first of all delayed items are looked at: when none of them is of this scope, nothing of it comes due before
-- the last of them.
select extract(epoch from coalesce(
           min(x.due_at) filter (where x.ours),
           case when count(*) = $5::int then max(x.due_at) end) - shoal.clock())::float8
from (
    select d.due_at, r.state = 'active' and ($1::text is null or r.scraper = $1)
                     and ($2::text[] is null or r.id = any ($2))
                     and ($3::text[] is null or s.name = any ($3))
                     and ($4::text[] is null or k.partition = any ($4)) as ours
    from (select d.due_at, d.queue from shoal.delayed d order by d.due_at limit $5) d
    join shoal.queue k on k.id = d.queue
    join shoal.stage s on s.id = k.stage
    join shoal.run r on r.no = k.run
) x
