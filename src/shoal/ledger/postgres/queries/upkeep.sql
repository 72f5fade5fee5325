-- Upkeep and health. next_due differs from SQLite in lists and in the arithmetic of times.

-- name: ticks_due
select k.name from shoal.tick k
join unnest($1::text[], $2::float8[]) as u(name, every) on u.name = k.name
where k.at <= shoal.clock() - shoal.seconds(u.every) or k.at > shoal.clock() + shoal.seconds(u.every)

-- name: tick_due
select shoal.tick_due($1, $2::float8)

-- name: fold_counts
select shoal.fold_counts($1::int)

-- name: sweep_step
select * from shoal.sweep_step($1::int)

-- name: finish_runs
select shoal.finish_runs()

-- name: tidy
-- Receipts are needed for minutes, counts per minute for days, locks for schedules that run once a year. Deletes at
-- most $1 of each, and returns the largest number deleted.
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
),
-- Also those that were never finished: refused requests leave them.
old_request_keys as (
    delete from shoal.lock x where x.name = any (array(
        select y.name from shoal.lock y where y.name >= 'request-key/' and y.name < 'request-key0'
            and y.expires_at < shoal.clock() - interval '1 day' limit $1))
    returning 1
),
old_grants as (
    delete from shoal.budget_grant x where x.id = any (array(
        select g.id from shoal.budget b join shoal.budget_grant g on g.budget = b.id
        where g.ends_at < shoal.budget_since(b, extract(epoch from shoal.clock())::float8) limit $1))
    returning 1
),
old_budgets as (
    delete from shoal.budget b where b.used_at < extract(epoch from shoal.clock()) - 32 * 86400
        and not exists (select 1 from shoal.budget_grant g where g.budget = b.id)
)
select greatest((select count(*) from old_receipts), (select count(*) from old_claims),
                (select count(*) from old_minutes), (select count(*) from old_locks),
                (select count(*) from old_request_keys), (select count(*) from old_grants))

-- name: next_due
-- Only the first delayed items are read: when none of them is in this scope, no item in it is due before the last of
-- them.
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

-- name: ledger_size
-- The whole database: it is the ledger's own.
select pg_catalog.pg_database_size(pg_catalog.current_database()) as bytes

-- name: health
-- S0.20. Sessions are counted for the whole server, as its limit is; waits and transactions for this database, without
-- those of autovacuum.
select shoal.clock() as clock,
       count(*) filter (where a.backend_type = 'client backend')::int as sessions,
       current_setting('max_connections')::int as most_sessions,
       (count(*) filter (where a.wait_event_type = 'Lock' and a.datname = current_database()))::int as lock_waits,
       extract(epoch from max(clock_timestamp() - a.xact_start)
               filter (where a.datname = current_database() and a.backend_type = 'client backend'
                         and a.pid <> pg_backend_pid()))::float8 as longest_transaction
from pg_catalog.pg_stat_activity a
