-- Lists of items: the next ids in ascending order, from the table of such items. seen_to: only items up to this id were
-- read, because many do not match; null means all. Plans are pinned as in 60_runs.sql, so that a list does not become
-- slow when statistics are old.

-- Items of these queues in this state (null: any). Only for states with their own table and index.
create or replace function shoal.find_items(
    state text, queues int[], after_item bigint, most int, out ids bigint[], out seen_to bigint)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    kinds int;
begin
    if state is null then
        ids := array(
            select x.id from unnest(queues) as q(id)
            cross join lateral (select i.id from shoal.item i
                                where (i.queue, i.id) > (q.id, after_item) and (i.queue, i.id) < (q.id + 1, 0)
                                order by i.queue, i.id limit most) x
            order by x.id limit most);
    elsif state = 'waiting' then
        ids := array(
            select x.item from unnest(queues) as q(id)
            cross join lateral (select w.item from shoal.waiting w
                                where (w.queue, w.item) > (q.id, after_item) and (w.queue, w.item) < (q.id + 1, 0)
                                order by w.queue, w.item limit most) x
            order by x.item limit most);
    elsif state = 'delayed' then
        ids := array(
            select x.item from unnest(queues) as q(id)
            cross join lateral (select d.item from shoal.delayed d
                                where (d.queue, d.item) > (q.id, after_item) and (d.queue, d.item) < (q.id + 1, 0)
                                order by d.queue, d.item limit most) x
            order by x.item limit most);
    elsif state = 'leased' then
        ids := array(select s.item from shoal.lease s where s.item > after_item and s.queue = any (queues)
                     order by s.item limit most);
    else
        -- Ready items are ordered by id within each priority, so this steps from priority to priority along the index;
        -- with very many priorities it is cheaper to read all rows.
        with recursive kind(queue, priority) as (
            select q.id, (select r.priority from shoal.ready r where r.queue = q.id order by r.priority limit 1)
            from unnest(queues) as q(id)
            union all
            select k.queue, (select r.priority from shoal.ready r
                             where r.queue = k.queue and r.priority > k.priority order by r.priority limit 1)
            from kind k where k.priority is not null
        ),
        few as materialized (select k.queue, k.priority from kind k where k.priority is not null limit 1001),
        found as materialized (
            select x.item from few f
            cross join lateral (select r.item from shoal.ready r
                                where r.queue = f.queue and r.priority = f.priority and r.item > after_item
                                order by r.item limit most) x
            where (select count(*) from few) <= 1000
        )
        select array(select f.item from found f order by f.item limit most), (select count(*) from few) into ids, kinds;
        if kinds > 1000 then
            ids := array(select r.item from shoal.ready r where r.queue = any (queues) and r.item > after_item
                         order by r.item limit most);
        end if;
    end if;
end $$;

-- Done items of a run, of these queues or of all (null). At most `most_seen` are read.
create or replace function shoal.find_done(
    run_no int, queues int[], after_item bigint, most int, most_seen int, out ids bigint[], out seen_to bigint)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    seen int;
begin
    if queues is null then
        with w as materialized (
            select o.item, o.state = 'done' as matches from shoal.outcome o
            where (o.run, o.item) > (run_no, after_item) and (o.run, o.item) < (run_no + 1, 0)
            order by o.run, o.item limit most_seen
        )
        select array(select w.item from w where w.matches order by w.item limit most), count(*), max(w.item)
        into ids, seen, seen_to from w;
    else
        with w as materialized (
            select x.id from unnest(queues) as q(id)
            cross join lateral (select i.id from shoal.item i
                                where (i.queue, i.id) > (q.id, after_item) and (i.queue, i.id) < (q.id + 1, 0)
                                order by i.queue, i.id limit most_seen) x
            order by x.id limit most_seen
        )
        select array(
                   select w.id from w
                   where exists (select 1 from shoal.outcome o
                                 where o.run = run_no and o.item = w.id and o.state = 'done' limit 1)
                   order by w.id limit most),
               count(*), max(w.id)
        into ids, seen, seen_to from w;
    end if;
    if seen < most_seen then
        seen_to := null;
    end if;
end $$;

-- Dead, skipped or cancelled items of a run; of these queues, with this outcome, with this text in their error (null: any).
create or replace function shoal.find_ended(
    run_no int, queues int[], after_item bigint, most int, most_seen int, ended_as text, with_outcome text,
    with_error text, out ids bigint[], out seen_to bigint)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    seen int;
begin
    with w as materialized (
        select o.item, (queues is null or o.queue = any (queues))
                       and (with_outcome is null or o.outcome = with_outcome)
                       and (with_error is null or strpos(o.error, with_error) > 0) as matches
        from shoal.outcome o
        where o.state <> 'done' and (o.run, o.state, o.item) > (run_no, ended_as, after_item)
          and (o.run, o.state, o.item) <= (run_no, ended_as, 9223372036854775807)
        order by o.run, o.state, o.item limit most_seen
    )
    select array(select w.item from w where w.matches order by w.item limit most), count(*), max(w.item)
    into ids, seen, seen_to from w;
    if seen < most_seen then
        seen_to := null;
    end if;
end $$;

-- Items of a run with an earlier attempt of this outcome or error, not necessarily their last: the caller checks that.
create or replace function shoal.find_attempted(
    run_no int, after_item bigint, most int, most_seen int, with_outcome text, with_error text,
    out ids bigint[], out seen_to bigint)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    seen int;
begin
    with w as materialized (
        select a.item, (with_outcome is null or a.outcome = with_outcome)
                       and (with_error is null or strpos(a.error, with_error) > 0) as matches
        from shoal.attempt a
        where (a.run, a.item) > (run_no, after_item) and (a.run, a.item) < (run_no + 1, 0)
        order by a.run, a.item, a.epoch limit most_seen
    )
    -- The last item may have more attempts than were read: unless it is the only one, it is left for the next page.
    select array(select distinct w.item from w where w.matches order by w.item limit most), count(*),
           coalesce(max(w.item) filter (where w.item < (select max(x.item) from w x)), max(w.item))
    into ids, seen, seen_to from w;
    if seen < most_seen then
        seen_to := null;
    end if;
end $$;

-- These items in full. The state is the table that holds the row; one statement has one snapshot, so it is unique.
create or replace function shoal.item_views(run_no int, ids bigint[])
returns table (
    id bigint, stage text, partition text, key text, url text, payload json, request json, depth smallint,
    lane text, priority int, parent bigint, max_attempts int, state text, since timestamptz, due_at timestamptz, worker text, tries smallint, rescues smallint,
    epoch int, outcome text, error text, reason text)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    select i.id, g.name, k.partition, i.key, i.url, i.payload, i.request, i.depth, l.key, i.priority, i.parent,
           coalesce(i.max_attempts, g.max_attempts, n.max_attempts),
           case when o.item is not null then o.state when s.item is not null then 'leased'
                when y.item is not null then 'ready' when d.item is not null then 'delayed'
                when w.item is not null then 'waiting' end,
           coalesce(o.ended_at, s.claimed_at, y.since, d.since, w.since), d.due_at,
           coalesce(wo.id, ws.id),
           coalesce(o.tries, s.tries, y.tries, d.tries, w.tries),
           coalesce(o.rescues, s.rescues, y.rescues, d.rescues, w.rescues),
           coalesce(o.epoch, s.epoch, y.epoch, d.epoch, w.epoch),
           coalesce(o.outcome, a.outcome),
           case when o.item is not null then o.error else a.error end, d.reason
    from unnest(ids) as u(id)
    cross join lateral (select i.* from shoal.item i where i.run = run_no and i.id = u.id limit 1) i
    join shoal.run n on n.no = i.run
    join shoal.stage g on g.id = i.stage
    join shoal.queue k on k.id = i.queue
    left join shoal.lane l on l.id = i.lane
    left join lateral (select o.* from shoal.outcome o where o.run = i.run and o.item = i.id limit 1) o on true
    left join lateral (select s.* from shoal.lease s where s.item = i.id limit 1) s on true
    left join lateral (select y.* from shoal.ready y
                       where y.queue = i.queue and y.priority = i.priority and y.item = i.id limit 1) y on true
    left join lateral (select d.* from shoal.delayed d where d.item = i.id and d.queue = i.queue limit 1) d on true
    left join lateral (select w.* from shoal.waiting w
                       where w.lane = i.lane and w.run = i.run and w.priority = i.priority and w.item = i.id
                         and w.queue = i.queue limit 1) w on true
    left join shoal.worker wo on wo.no = o.worker
    left join shoal.worker ws on ws.no = s.worker
    left join lateral (select a.outcome, a.error from shoal.attempt a where a.run = i.run and a.item = i.id
                       order by a.epoch desc limit 1) a on true
    order by i.id;
end $$;

-- Lanes that a run waits for, among them the busiest. There may be very many, and no index orders them by waiting
-- items: so this reads the lanes of the first items and of some spread evenly over the rest. A lane with one percent of
-- the waiting items is found in 99 of 100 cases.
create or replace function shoal.busy_lanes(run_no int) returns bigint[]
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    queues int[] := array(select k.id from shoal.queue k where k.run = run_no);
    each int := 1 + 500 / greatest(1, cardinality(queues));
begin
    return array(
        select distinct x.lane from unnest(queues) as q(id)
        cross join lateral (
            (select w.lane from shoal.waiting w
             where (w.queue, w.item) > (q.id, 0) and (w.queue, w.item) < (q.id + 1, 0)
             order by w.queue, w.item limit each)
            union all
            select s.lane
            from (select w.item from shoal.waiting w
                  where (w.queue, w.item) > (q.id, 0) and (w.queue, w.item) < (q.id + 1, 0)
                  order by w.queue, w.item limit 1) first
            cross join lateral (
                select w.item from shoal.waiting w
                where (w.queue, w.item) > (q.id, 0) and (w.queue, w.item) < (q.id + 1, 0)
                order by w.queue desc, w.item desc limit 1) last
            cross join generate_series(1, each) as n
            cross join lateral (
                select w.lane from shoal.waiting w
                where (w.queue, w.item) > (q.id, first.item + (last.item - first.item) * n / each - 1)
                  and (w.queue, w.item) < (q.id + 1, 0)
                order by w.queue, w.item limit 1) s
        ) x);
end $$;

-- Delayed items of a run, up to the number that counts as "many".
create or replace function shoal.some_delayed(run_no int)
returns table (reason text, due_at timestamptz, lane bigint)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    select x.reason, x.due_at, x.lane from shoal.queue k
    cross join lateral (select d.reason, d.due_at, d.lane from shoal.delayed d
                        where (d.queue, d.item) > (k.id, 0) and (d.queue, d.item) < (k.id + 1, 0)
                        order by d.queue, d.item limit 10001) x
    where k.run = run_no limit 10001;
end $$;

-- Items of a run with this text in their key or URL; of these queues or of all (null). At most `most_seen` are read.
create or replace function shoal.find_text(
    run_no int, queues int[], after_item bigint, most int, most_seen int, part text,
    out ids bigint[], out seen_to bigint)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    seen int;
begin
    with w as materialized (
        select i.id, (queues is null or i.queue = any (queues))
                     and (strpos(i.key, part) > 0 or strpos(i.url, part) > 0) as matches
        from shoal.item i
        where (i.run, i.id) > (run_no, after_item) and (i.run, i.id) < (run_no + 1, 0)
        order by i.run, i.id limit most_seen
    )
    select array(select w.id from w where w.matches order by w.id limit most), count(*), max(w.id)
    into ids, seen, seen_to from w;
    if seen < most_seen then
        seen_to := null;
    end if;
end $$;

-- Items of a run in these lanes.
create or replace function shoal.find_in_lanes(
    run_no int, lanes bigint[], after_item bigint, most int, out ids bigint[], out seen_to bigint)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    ids := array(
        select x.id from unnest(lanes) as l(id)
        cross join lateral (select i.id from shoal.item i
                            where i.run = run_no and i.lane = l.id and i.id > after_item
                            order by i.run, i.lane, i.id limit most) x
        order by x.id limit most);
end $$;

-- Items of a failure group of a run.
create or replace function shoal.find_failure(
    run_no int, group_no int, after_item bigint, most int, out ids bigint[], out seen_to bigint)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    ids := array(select o.item from shoal.outcome o
                 where o.failure = group_no and o.state = 'dead' and o.failure is not null and o.item > after_item
                   and o.run = run_no
                 order by o.failure, o.item limit most);
end $$;

-- Those of these items that are in one of the lanes and have the text in their key or URL (null: any).
create or replace function shoal.refine_items(run_no int, items bigint[], lanes bigint[], part text) returns bigint[]
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return array(
        select i.id from unnest(items) as u(id)
        cross join lateral (select i.id, i.lane, i.key, i.url from shoal.item i
                            where i.run = run_no and i.id = u.id limit 1) i
        where (lanes is null or i.lane = any (lanes))
          and (part is null or strpos(i.key, part) > 0 or strpos(i.url, part) > 0)
        order by i.id);
end $$;
