-- Store new items, once per (stage, key_hash), and insert them into ready, delayed or waiting. Used by bulk enqueue and
-- by the commit for follow-ups. The caller has created and locked the lanes, and admits items afterwards. The arrays
-- are parallel; a null array means null for every row. lane_ix is an index into lane_ids. Ids follow the order of
-- arrival, whatever the order of storing. Rows whose parent is not in `accepted` are left out (null: all are stored).
create or replace function shoal.intake(
    t timestamptz, queues int[], hashes bytea[], keys text[], urls text[], payloads json[], lane_ix int[],
    priorities int[], delays double precision[], max_tries int[], requests json[], depths smallint[], parents bigint[],
    accepted bigint[], lane_ids bigint[],
    out enqueued int, out duplicates int)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    with input as materialized (
        select u.*, k.run, k.stage, nextval('shoal.item_id') as id
        from unnest(queues, hashes, keys, urls, payloads, lane_ix, priorities, delays, max_tries, requests, depths,
                    parents) with ordinality
            as u(queue, key_hash, key, url, payload, lane_ix, priority, delay, max_attempts, request, depth, parent,
                 ord)
        join shoal.queue k on k.id = u.queue
        where accepted is null or u.parent in (select a.item from unnest(accepted) as a(item))
    ),
    fresh as (
        insert into shoal.item (id, lane, parent, created_at, not_before, run, stage, queue, priority, max_attempts,
                                key_hash, key, url, payload, request, depth)
        select i.id, lane_ids[i.lane_ix], i.parent, t, case when i.delay > 0 then t + shoal.seconds(i.delay) end,
               i.run, i.stage, i.queue, coalesce(i.priority, 0), i.max_attempts, i.key_hash, i.key, i.url, i.payload,
               i.request, coalesce(i.depth, 0)
        from input i
        -- In the order of the index: cheaper, and two transactions that store the same keys cannot deadlock.
        order by i.stage, i.key_hash, i.ord
        on conflict (stage, key_hash) do nothing
        returning id, lane, not_before, run, queue, priority
    ),
    to_ready as (
        insert into shoal.ready (item, lane, since, queue, priority, epoch, tries, rescues)
        select f.id, null, t, f.queue, f.priority, 0, 0, 0
        from fresh f where f.lane is null and f.not_before is null
    ),
    to_delayed as (
        insert into shoal.delayed
            (item, lane, due_at, since, run, queue, priority, epoch, tries, rescues, slotted, reason)
        select f.id, f.lane, f.not_before, t, f.run, f.queue, f.priority, 0, 0, 0, false, 'not_before'
        from fresh f where f.not_before is not null
    ),
    to_waiting as (
        insert into shoal.waiting (item, lane, since, run, queue, priority, epoch, tries, rescues)
        select f.id, f.lane, t, f.run, f.queue, f.priority, 0, 0, 0
        from fresh f where f.lane is not null and f.not_before is null
    ),
    counted as (
        update shoal.lane l set waiting = l.waiting + n.n
        from (select f.lane, count(*)::int as n from fresh f
              where f.lane is not null and f.not_before is null group by f.lane) n
        where l.id = n.lane
    ),
    per_queue as (
        select f.queue, count(*) as n,
               count(*) filter (where f.not_before is not null) as delayed,
               count(*) filter (where f.not_before is null and f.lane is not null) as waiting
        from fresh f group by f.queue
    ),
    handed_in as (select i.queue, count(*) as n from input i group by i.queue),
    delta as (
        insert into shoal.count_delta (at, queue, ready, waiting, delayed, duplicates)
        select t, h.queue, coalesce(p.n - p.waiting - p.delayed, 0), coalesce(p.waiting, 0),
               coalesce(p.delayed, 0), h.n - coalesce(p.n, 0)
        from handed_in h left join per_queue p on p.queue = h.queue
    )
    select coalesce((select sum(p.n) from per_queue p), 0), coalesce((select sum(h.n) from handed_in h), 0)
    into enqueued, duplicates;
    duplicates := duplicates - enqueued;
end $$;

-- Whether the run whose stage declared a lane's policy is active while a stage of another run declares its own: then
-- the stricter policy applies, because both runs send requests.
create or replace function shoal.still_declared(by_stage int, new_stage int) returns boolean
language sql stable as $$
    select exists (
        select 1
        from shoal.stage o join shoal.run r on r.no = o.run and r.state = 'active', shoal.stage n
        where o.id = by_stage and n.id = new_stage and o.run <> n.run)
$$;

-- Whether a lane is that of a host on this machine; model/lane.py has the same rule.
create or replace function shoal.is_loopback_lane(key text) returns boolean
language sql immutable as
$$ select key ~ '^(127(\.[0-9]+){3}|([a-z0-9-]+\.)*localhost|\[::1\])(:[0-9]+)?$' $$;

-- The policy that a stage declares for a lane.
create or replace function shoal.declared_pace(
    s shoal.stage, key text, out max_active int, out delay_min real, out delay_max real)
language sql immutable as $$
    select case when x.free then s.lane_loopback_limit else s.lane_limit end,
           case when x.free then 0 else s.lane_delay_min end, case when x.free then 0 else s.lane_delay_max end
    from (select s.lane_loopback_limit is not null and shoal.is_loopback_lane(key) as free) x
$$;

-- The ids of these lanes, created if needed, in the given order. A lane has the policy of the newest stage that named it,
-- until an operator changes it, so that two runs with different policies do not overwrite each other.
create or replace function shoal.ensure_lanes(names text[], stages int[]) returns bigint[]
language plpgsql as $$
begin
    insert into shoal.lane as l
        (run, key, max_active, own_delay_min, own_delay_max, delay_min, delay_max, ordered, declared_by)
    select d.run, d.name, d.max_active, d.delay_min, d.delay_max, d.delay_min, d.delay_max, d.lane_ordered, d.stage
    from (
        select distinct on (1, 2) case when s.lane_shared then 0 else s.run end as run, n.name,
               p.max_active, p.delay_min, p.delay_max, s.lane_ordered, s.id as stage
        from unnest(names, stages) as n(name, stage)
        join shoal.stage s on s.id = n.stage
        cross join lateral shoal.declared_pace(s, n.name) p
        order by 1, 2, s.id desc
    ) d
    where not exists (select 1 from shoal.lane x where x.run = d.run and x.key = d.name
                      and (x.by_operator or x.declared_by >= d.stage))
    order by d.run, d.name
    on conflict (run, key) do update
        set (max_active, own_delay_min, own_delay_max, delay_min, delay_max, ordered, declared_by) = (
            select least(excluded.max_active, o.max_active), greatest(excluded.own_delay_min, o.delay_min),
                   greatest(excluded.own_delay_max, o.delay_max), greatest(excluded.own_delay_min, o.delay_min, l.floor),
                   greatest(excluded.own_delay_max, o.delay_max, l.floor), excluded.ordered, excluded.declared_by
            from (select case when s.still then l.max_active end as max_active,
                         case when s.still then l.own_delay_min end as delay_min,
                         case when s.still then l.own_delay_max end as delay_max
                  from (select shoal.still_declared(l.declared_by, excluded.declared_by) as still) s) o)
        where not l.by_operator and l.declared_by < excluded.declared_by;
    return array(
        select l.id
        from unnest(names, stages) with ordinality as n(name, stage, ord)
        join shoal.stage s on s.id = n.stage
        join shoal.lane l on l.run = case when s.lane_shared then 0 else s.run end and l.key = n.name
        order by n.ord);
end $$;

-- Enqueue one chunk. The receipt makes it safe to repeat the call after a broken connection.
create or replace function shoal.enqueue(
    receipt_id uuid, run_no int, queues int[], hashes bytea[], keys text[], urls text[], payloads json[],
    lane_ix int[], priorities int[], delays double precision[], max_tries int[], requests json[], depths smallint[],
    lane_names text[], lane_stages int[],
    out enqueued int, out duplicates int)
language plpgsql as $$
declare
    run_state text;
    t timestamptz;
    stored_answer json;
    lane_ids bigint[];
begin
    perform shoal.lock_runs_shared(array[run_no]);
    select r.answer into stored_answer from shoal.receipt r where r.id = receipt_id;
    if found then
        enqueued := stored_answer ->> 'enqueued';
        duplicates := stored_answer ->> 'duplicates';
        return;
    end if;
    select r.state into run_state from shoal.run r where r.no = run_no;
    if run_state is null or run_state not in ('active', 'paused') then
        raise exception using errcode = 'SH002', message = coalesce(run_state, 'removed');
    end if;
    if lane_names is not null then
        lane_ids := shoal.ensure_lanes(lane_names, lane_stages);
        perform shoal.lock_lanes(lane_ids);
    end if;
    t := shoal.clock();
    select i.enqueued, i.duplicates into enqueued, duplicates
    from shoal.intake(t, queues, hashes, keys, urls, payloads, lane_ix, priorities, delays, max_tries, requests,
                      depths, null, null, lane_ids) i;
    perform shoal.admit(lane_ids, t);
    if enqueued > 0 then
        perform shoal.wake();
    end if;
    insert into shoal.receipt (id, at, answer)
    values (receipt_id, t, json_build_object('enqueued', enqueued, 'duplicates', duplicates));
end $$;
