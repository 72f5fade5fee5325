-- Groups of dead items. Items are put into groups after their death, in bounded steps, so that a commit does no more
-- than before. The caller computes the shapes of the messages.

-- Runs with dead items in no group, at most 100.
create or replace function shoal.runs_with_ungrouped() returns table (run int)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_sort = off set enable_incremental_sort = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    with recursive x(no) as (
        (select o.run from shoal.outcome o where o.state = 'dead' and o.failure is null order by o.run limit 1)
        union all
        select (select o.run from shoal.outcome o where o.state = 'dead' and o.failure is null and o.run > x.no
                order by o.run limit 1)
        from x where x.no is not null
    )
    select y.no from (select x.no from x where x.no is not null limit 100) y
    cross join lateral (select r.state from shoal.run r where r.no = y.no and r.state <> 'removed' limit 1) r;
end $$;

-- Dead items of a run in no group, in the order of their ids.
create or replace function shoal.ungrouped(run_no int, after_item bigint, most int)
returns table (item bigint, epoch int, stage int, stage_name text, outcome text, error text, url text, key text,
               tries smallint, ended_at timestamptz)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_sort = off set enable_incremental_sort = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    select x.item, x.epoch, i.stage, g.name, x.outcome, x.error, i.url, i.key, x.tries, x.ended_at
    from (select o.item, o.epoch, o.outcome, o.error, o.tries, o.ended_at from shoal.outcome o
          where o.state = 'dead' and o.failure is null
            and (o.run, o.item) > (run_no, after_item) and (o.run, o.item) < (run_no + 1, 0)
          order by o.run, o.item limit most) x
    cross join lateral (select i.stage, i.url, i.key from shoal.item i
                        where i.run = run_no and i.id = x.item limit 1) i
    join shoal.stage g on g.id = i.stage
    order by x.item;
end $$;

-- Put these items into the groups of their keys, creating those that are missing. Items that are no longer dead, or in
-- a group already, are left out. One step of a run at a time; 0 when another one is being made.
create or replace function shoal.group_failures(
    run_no int, items bigint[], epochs int[], stages int[], outcomes text[], hosts text[], shapes text[]) returns int
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    n int;
begin
    if not pg_catalog.pg_try_advisory_xact_lock(21321, run_no) then
        return 0;
    end if;
    -- Retries, replays and removals hold this lock exclusively.
    perform shoal.lock_runs_shared(array[run_no]);
    if not exists (select 1 from shoal.run r where r.no = run_no and r.state <> 'removed') then
        return 0;
    end if;
    insert into shoal.failure_group (run, stage, outcome, host, shape, first_at, last_at)
    select distinct run_no, u.stage, u.outcome, u.host, u.shape, 'epoch'::timestamptz, 'epoch'::timestamptz
    from unnest(stages, outcomes, hosts, shapes) as u(stage, outcome, host, shape)
    on conflict (run, stage, outcome, host, shape) do nothing;
    with known as materialized (
        select u.item, u.epoch, g.id
        from unnest(items, epochs, stages, outcomes, hosts, shapes) as u(item, epoch, stage, outcome, host, shape)
        cross join lateral (select g.id from shoal.failure_group g
                            where g.run = run_no and g.stage = u.stage and g.outcome = u.outcome and g.host = u.host
                              and g.shape = u.shape limit 1) g
    ),
    moved as (
        update shoal.outcome o set failure = k.id from known k
        where o.run = run_no and o.item = k.item and o.epoch = k.epoch and o.state = 'dead' and o.failure is null
        returning o.item, o.failure, o.ended_at, o.error
    ),
    per_minute as (
        insert into shoal.failure_minute as m (failure, minute, items)
        select v.failure, date_trunc('minute', v.ended_at), count(*) from moved v group by 1, 2
        on conflict (failure, minute) do update set items = m.items + excluded.items
    ),
    newest as (
        select distinct on (v.failure) v.failure, v.item, v.error from moved v order by v.failure, v.ended_at desc, v.item desc
    ),
    counted as (
        update shoal.failure_group g
        set items = g.items + c.n,
            first_at = case when g.items = 0 then c.first_at else least(g.first_at, c.first_at) end,
            last_at = greatest(g.last_at, c.last_at),
            item = case when c.last_at >= g.last_at then w.item else g.item end,
            error = case when c.last_at >= g.last_at then coalesce(w.error, '') else g.error end
        from (select v.failure, count(*) as n, min(v.ended_at) as first_at, max(v.ended_at) as last_at
              from moved v group by v.failure) c
        join newest w on w.failure = c.failure
        where g.id = c.failure
    )
    select count(*) into n from moved;
    return n;
end $$;
