-- Lists of lanes. Plans are pinned as in 75_lists.sql.

-- How long the items that wait for a lane will take, by its delay and its limit alone, if an attempt takes a second.
create or replace function shoal.lane_seconds(l shoal.lane, t timestamptz) returns double precision
language sql immutable as $$
    select l.waiting * greatest((l.delay_min + l.delay_max) / 2, 1.0 / l.max_active)
           + greatest(0, extract(epoch from l.blocked_until - t), 0)
$$;

-- Rank the lanes with waiting items: the slowest `most` of each run, and of the shared lanes. Upkeep, every few seconds:
-- it reads all lanes.
create or replace function shoal.rank_lanes(most int) returns void
language plpgsql
set jit = off
as $$
declare
    t timestamptz := shoal.clock();
begin
    if not pg_catalog.pg_try_advisory_xact_lock(21322, 0) then
        return;
    end if;
    update shoal.tick k set at = t where k.name = 'slow_lanes';
    with estimated as materialized (
        select l.id, l.run, shoal.lane_seconds(l, t) as seconds from shoal.lane l where l.waiting > 0
    ),
    ranked as materialized (
        select x.id, x.run, x.seconds
        from (select e.*, row_number() over (partition by e.run order by e.seconds desc, e.id) as place from estimated e) x
        where x.place <= most
    ),
    gone as (
        delete from shoal.slow_lane s where not exists (select 1 from ranked r where r.id = s.lane)
    )
    insert into shoal.slow_lane as s (lane, run, seconds) select r.id, r.run, r.seconds from ranked r
    on conflict (lane) do update set seconds = excluded.seconds where s.seconds <> excluded.seconds;
end $$;

-- Lanes that items of a run use, by id; at most so many.
create or replace function shoal.run_lanes(run_no int, most int) returns bigint[]
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return array(
        with recursive x(lane) as (
            (select i.lane from shoal.item i where i.run = run_no and i.lane is not null
             order by i.run, i.lane, i.id limit 1)
            union all
            select (select i.lane from shoal.item i where i.run = run_no and i.lane is not null and i.lane > x.lane
                    order by i.run, i.lane, i.id limit 1)
            from x where x.lane is not null
        )
        select x.lane from x where x.lane is not null limit most);
end $$;

-- The shared lanes that a run uses, by name: of the next `most_seen` shared lanes those with items of the run.
create or replace function shoal.walk_lanes(
    run_no int, from_key text, to_key text, most_seen int, out lanes bigint[], out seen int, out last_key text)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    with w as materialized (
        select l.id, l.key from shoal.lane l
        where l.run = 0 and l.key >= from_key and l.key < to_key order by l.run, l.key limit most_seen
    )
    select array(select w.id from w
                 where exists (select 1 from shoal.item i where i.run = run_no and i.lane = w.id limit 1)
                 order by w.key),
           count(*), max(w.key)
    into lanes, seen, last_key from w;
end $$;

-- The items of a run in each of these lanes by where they are, counted up to `most` each; run null: of all runs, without
-- the total. alone: no other run waits for the lane.
create or replace function shoal.lane_counts(run_no int, lanes bigint[], most int)
returns table (lane bigint, alone boolean, waiting bigint, slotted bigint, unslotted bigint, total bigint)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    select u.id,
           run_no is null or not exists (
               (select from shoal.waiting w where w.lane = u.id and w.run < run_no order by w.lane, w.run limit 1)
               union all
               (select from shoal.waiting w where w.lane = u.id and w.run > run_no order by w.lane, w.run limit 1)),
           case when run_no is null then l.waiting else (
               select count(*) from (select 1 from shoal.waiting w where w.lane = u.id and w.run = run_no
                                     order by w.lane, w.run, w.priority, w.item limit most) x) end,
           (select count(*) from (select 1 from shoal.delayed d where d.lane = u.id and d.slotted limit most) x),
           (select count(*) from (select 1 from shoal.delayed d where d.lane = u.id and not d.slotted limit most) x),
           case when run_no is not null then (
               select count(*) from (select 1 from shoal.item i where i.run = run_no and i.lane = u.id
                                     order by i.run, i.lane, i.id limit most) x) end
    from unnest(lanes) as u(id)
    cross join lateral (select l.waiting::bigint as waiting from shoal.lane l where l.id = u.id limit 1) l;
end $$;

-- Recent attempts on items of these lanes: of those before the first item that nobody has claimed, the last ones.
create or replace function shoal.lane_spans(run_no int, lanes bigint[], since timestamptz, most int)
returns table (lane bigint, item bigint, name text, began_at timestamptz, ended_at timestamptz, outcome text)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    select u.id, x.id, x.name, x.began_at, x.ended_at, x.outcome
    from unnest(lanes) as u(id)
    cross join lateral (
        select min(w.item) as head
        from (select w.item, w.epoch from shoal.waiting w where w.lane = u.id and w.run = run_no
              order by w.lane, w.run, w.priority, w.item limit 200) w
        where w.epoch = 0
    ) h
    cross join lateral (
        select i.id, i.name, a.began_at, a.ended_at, a.outcome
        from (select i.id, coalesce(i.key, i.url) as name from shoal.item i
              where i.run = run_no and i.lane = u.id and i.id < coalesce(h.head, 9223372036854775807)
              order by i.run desc, i.lane desc, i.id desc limit 2 * most) i
        cross join lateral (
            (select greatest(o.claimed_at, o.ended_at - shoal.seconds(o.seconds)) as began_at, o.ended_at,
                    case when o.state = 'done' then 'done' else o.outcome end as outcome
             from shoal.outcome o
             where o.run = run_no and o.item = i.id and o.ended_at > since and o.epoch > 0
               and (o.state <> 'cancelled' or o.worker is not null) limit 1)
            union all
            (select greatest(t.claimed_at, t.ended_at - shoal.seconds(t.seconds)), t.ended_at, t.outcome
             from shoal.attempt t where t.run = run_no and t.item = i.id and t.ended_at > since
             order by t.run, t.item, t.epoch desc limit 5)
            union all
            (select coalesce(s.started_at, s.claimed_at), null, null from shoal.lease s where s.item = i.id limit 1)
        ) a
        order by a.began_at desc limit most
    ) x;
end $$;
