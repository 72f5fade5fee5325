-- The ledger's clock. Everything uses this function, never the caller's clock; tests replace it to move time.
create or replace function shoal.clock() returns timestamptz
language sql volatile as 'select pg_catalog.clock_timestamp()';

create or replace function shoal.seconds(n double precision) returns interval
language sql immutable as 'select pg_catalog.make_interval(secs => n)';

-- Every transaction that moves rows of a run holds this lock shared; pausing, cancelling, finishing and removing hold
-- it exclusively. It is in memory, bound to the transaction (so PgBouncer may pool transactions), and always taken
-- before the locks of lanes, which are taken before those of rows.
create or replace function shoal.lock_runs_shared(runs int[]) returns void
language plpgsql as $$
begin
    if cardinality(runs) = 1 then
        perform pg_catalog.pg_advisory_xact_lock_shared(21320, runs[1]);
        return;
    end if;
    perform pg_catalog.pg_advisory_xact_lock_shared(21320, r.no)
    from (select distinct u.no from unnest(runs) as u(no) order by u.no) as r;
end $$;

create or replace function shoal.lock_run(run int) returns void
language sql as 'select pg_catalog.pg_advisory_xact_lock(21320, run)';

create or replace function shoal.lock_lanes(lanes bigint[]) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
begin
    if lanes is not null then
        perform 1 from shoal.lane l where l.id = any (lanes) order by l.id for update;
    end if;
end $$;

-- Locks those of these lanes that are not locked now, and returns them.
create or replace function shoal.lock_free_lanes(lanes bigint[]) returns bigint[]
language sql as $$
    select coalesce(array_agg(x.id), '{}')
    from (select l.id from shoal.lane l where l.id = any (lanes) order by l.id for update skip locked) x
$$;

-- True for one caller per interval; the others get false without waiting.
create or replace function shoal.tick_due(what text, every double precision) returns boolean
language plpgsql as $$
declare
    t timestamptz := shoal.clock();
begin
    perform 1 from shoal.tick k
    where k.name = what and (k.at <= t - shoal.seconds(every) or k.at > t + shoal.seconds(every))
    for update skip locked;
    if not found then
        return false;
    end if;
    update shoal.tick set at = t where name = what;
    return true;
end $$;

-- Wake sleeping workers, at most ten times a second: NOTIFY takes a lock that all committers share.
create or replace function shoal.wake() returns void
language plpgsql as $$
begin
    if shoal.tick_due('wake', 0.1) then
        perform pg_catalog.pg_notify('shoal_wake', '');
    end if;
end $$;
