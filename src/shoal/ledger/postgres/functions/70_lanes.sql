-- Lock a lane for a change; a shared lane is created if needed. Null when the run has no such lane.
create or replace function shoal.lock_lane(run_no int, lane_key text) returns bigint
language plpgsql as $$
declare
    lane_id bigint;
begin
    if run_no = 0 then
        insert into shoal.lane (run, key, max_active, own_delay_min, own_delay_max, delay_min, delay_max, ordered)
        values (0, lane_key, 1, 0, 0, 0, 0, false) on conflict (run, key) do nothing;
    end if;
    select l.id into lane_id from shoal.lane l where l.run = run_no and l.key = lane_key for update;
    return lane_id;
end $$;

-- Change what is not null. What an operator has set is not changed by stages later.
create or replace function shoal.set_lane(
    run_no int, lane_key text, new_limit int, new_delay_min real, new_delay_max real, new_paused boolean, actor text)
returns bigint
language plpgsql as $$
declare
    t timestamptz;
    lane_id bigint;
    was_paced boolean;
begin
    lane_id := shoal.lock_lane(run_no, lane_key);
    if lane_id is null then
        return null;
    end if;
    t := shoal.clock();
    select l.delay_max > 0 into was_paced from shoal.lane l where l.id = lane_id;
    update shoal.lane l
    set max_active = coalesce(new_limit, l.max_active),
        own_delay_min = coalesce(new_delay_min, l.own_delay_min),
        own_delay_max = coalesce(new_delay_max, l.own_delay_max),
        delay_min = coalesce(new_delay_min, l.delay_min),
        delay_max = coalesce(new_delay_max, l.delay_max),
        delay_fixed = l.delay_fixed or new_delay_min is not null,
        paused = coalesce(new_paused, l.paused),
        by_operator = l.by_operator or new_limit is not null or new_delay_min is not null
    where l.id = lane_id;
    if new_delay_min is not null then
        perform shoal.retime(lane_id, was_paced, t);
    end if;
    perform shoal.retime_delayed(lane_id, t);
    perform shoal.admit(array[lane_id], t);
    insert into shoal.event (at, run, actor, action, subject, detail)
    values (t, nullif(run_no, 0), actor, 'lane.set', lane_key, json_strip_nulls(json_build_object(
        'limit', new_limit, 'delay_min', new_delay_min, 'delay_max', new_delay_max, 'paused', new_paused)));
    perform shoal.wake();
    return lane_id;
end $$;

-- No item of the lane starts for so many seconds; 0 lifts a block.
create or replace function shoal.block_lane(run_no int, lane_key text, wait double precision, why text, actor text)
returns bigint
language plpgsql as $$
declare
    t timestamptz;
    lane_id bigint;
begin
    lane_id := shoal.lock_lane(run_no, lane_key);
    if lane_id is null then
        return null;
    end if;
    t := shoal.clock();
    update shoal.lane l
    set blocked_until = case when wait > 0 then t + shoal.seconds(wait) end,
        blocked_why = case when wait > 0 then why end
    where l.id = lane_id;
    perform shoal.retime_delayed(lane_id, t);
    perform shoal.admit(array[lane_id], t);
    insert into shoal.event (at, run, actor, action, subject, detail)
    values (t, nullif(run_no, 0), actor, 'lane.blocked', lane_key, json_build_object('seconds', wait, 'why', why));
    perform shoal.wake();
    return lane_id;
end $$;

-- At least so many seconds between two starts, whatever stages declare; 0 removes the floor.
create or replace function shoal.set_delay_floor(run_no int, lane_key text, new_floor double precision, why text)
returns bigint
language plpgsql as $$
declare
    t timestamptz;
    lane_id bigint;
    was_paced boolean;
begin
    lane_id := shoal.lock_lane(run_no, lane_key);
    if lane_id is null then
        return null;
    end if;
    t := shoal.clock();
    select l.delay_max > 0 into was_paced from shoal.lane l where l.id = lane_id;
    update shoal.lane l
    set floor = new_floor, floor_why = case when new_floor > 0 then why end,
        delay_min = case when l.delay_fixed then l.delay_min else greatest(l.own_delay_min, new_floor) end,
        delay_max = case when l.delay_fixed then l.delay_max else greatest(l.own_delay_max, new_floor) end
    where l.id = lane_id and (l.floor <> new_floor or l.floor_why is distinct from case when new_floor > 0 then why end);
    if not found then
        return lane_id;
    end if;
    perform shoal.retime(lane_id, was_paced, t);
    perform shoal.retime_delayed(lane_id, t);
    perform shoal.admit(array[lane_id], t);
    insert into shoal.event (at, run, actor, action, subject, detail)
    values (t, nullif(run_no, 0), 'ledger', 'lane.slowed', lane_key, json_build_object('floor', new_floor, 'why', why));
    perform shoal.wake();
    return lane_id;
end $$;

-- A lane's delay was changed. A shorter delay applies at once. The first delay of a lane counts from now if items of
-- the lane are leased: their requests may start at any moment without a reservation. Items admitted before are deferred
-- when they are claimed.
create or replace function shoal.retime(lane_id bigint, was_paced boolean, t timestamptz) returns void
language sql as $$
    update shoal.lane l
    set next_at = case
        when l.next_at > t + shoal.seconds(l.delay_max) then t + shoal.seconds(l.delay_max)
        when l.delay_max > 0 and not was_paced and exists (select 1 from shoal.lease s where s.lane = l.id)
        then greatest(l.next_at, t + shoal.lane_pause(l))
        else l.next_at end
    where l.id = lane_id
$$;

-- Delayed items with a slot become due when their lane may start again, sooner or later than before.
create or replace function shoal.retime_delayed(lane_id bigint, t timestamptz) returns void
language sql as $$
    update shoal.delayed d set due_at = greatest(t, shoal.lane_due(l, t))
    from shoal.lane l
    where l.id = lane_id and d.lane = lane_id and d.slotted and d.reason = 'lane'
      and d.due_at <> greatest(t, shoal.lane_due(l, t))
$$;

-- Reserve the next starts of a lane for a worker; waits: seconds until each. The first are for the given leases, which
-- are marked as started; the others are further requests. A start may be used up to `slack` seconds late, so other
-- workers keep that much more distance. idle: the worker did not use its reserved starts, and its last request was so
-- many seconds ago; unless another worker reserved since, the delay counts from that request. Returns fewer starts than
-- wanted when they would be more than `within` seconds ahead (null: a delay and a minute, so that after a block is
-- lifted the lane does not wait for hours). next_in: when the first start that was not given would be. spacing: the
-- minimum distance between two starts of the worker.
create or replace function shoal.reserve(
    run_no int, lane_key text, worker_no int, items bigint[], epochs int[], wanted int, within double precision,
    slack double precision, idle double precision,
    out waits double precision[], out lost bigint[], out spacing double precision, out next_in double precision,
    out at double precision)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    t timestamptz;
    l shoal.lane;
    starts_at timestamptz;
    first_at timestamptz;
    begun int;
begin
    waits := '{}';
    if cardinality(items) > 0 then
        perform shoal.lock_runs_shared(array(select s.run from shoal.lease s where s.item = any (items)));
    end if;
    select x.* into l from shoal.lane x where x.run = run_no and x.key = lane_key for update;
    t := shoal.clock();
    starts_at := greatest(t, l.blocked_until);
    if l.delay_max > 0 then
        starts_at := greatest(starts_at, case
            when l.next_by = worker_no and idle is not null
            then greatest(l.run_from, t + shoal.lane_pause(l) - shoal.seconds(idle))
            when l.next_by = worker_no then shoal.lane_next_at(l, t)
            else shoal.lane_next_at(l, t) + shoal.seconds(l.handover) end);
    end if;
    first_at := starts_at;
    for n in 1 .. wanted loop
        exit when extract(epoch from starts_at - t) > coalesce(within, 60 + coalesce(l.delay_max, 0));
        waits := waits || extract(epoch from starts_at - t)::double precision;
        if l.delay_max > 0 then
            starts_at := starts_at + shoal.lane_pause(l);
        end if;
    end loop;
    spacing := coalesce(l.delay_min, 0);
    next_in := extract(epoch from starts_at - t);
    at := extract(epoch from t);
    with begun as (
        update shoal.lease s set started_at = t
        from unnest(items[1:cardinality(waits)], epochs[1:cardinality(waits)]) as u(item, epoch)
        where s.item = u.item and s.epoch = u.epoch and s.started_at is null
        returning s.lane
    )
    select count(*) into begun from begun b where b.lane = l.id;
    lost := array(
        select u.item from unnest(items, epochs) as u(item, epoch)
        where not exists (select 1 from shoal.lease s where s.item = u.item and s.epoch = u.epoch));
    if l.id is not null and waits <> '{}' and (l.delay_max > 0 or begun > 0) then
        update shoal.lane x
        set unstarted = x.unstarted - begun,
            next_at = case when l.delay_max > 0 then starts_at else x.next_at end,
            run_from = case when x.next_by = worker_no then x.run_from else first_at end,
            next_by = worker_no, handover = slack
        where x.id = l.id;
        perform shoal.retime_delayed(l.id, t);
        perform shoal.admit(array[l.id], t);
    end if;
end $$;

-- The lane of a host that a stage's requests go to, locked. It is created with the stage's policy; an existing lane
-- gets the policy of the newest stage that named it, or the stricter one while the run of the older stage is active.
create or replace function shoal.host_lane(stage_id int, lane_key text) returns bigint
language plpgsql as $$
declare
    lane_id bigint;
begin
    select l.id into lane_id from shoal.lane l
    where l.run = 0 and l.key = lane_key and (l.by_operator or l.declared_by >= stage_id) for update;
    if found then
        return lane_id;
    end if;
    insert into shoal.lane as l
        (run, key, max_active, own_delay_min, own_delay_max, delay_min, delay_max, ordered, declared_by)
    select 0, lane_key, p.max_active, p.delay_min, p.delay_max, p.delay_min, p.delay_max, false, s.id
    from shoal.stage s cross join lateral shoal.declared_pace(s, lane_key) p where s.id = stage_id
    on conflict (run, key) do update
        set (max_active, own_delay_min, own_delay_max, delay_min, delay_max, declared_by) = (
            select least(excluded.max_active, o.max_active), greatest(excluded.own_delay_min, o.delay_min),
                   greatest(excluded.own_delay_max, o.delay_max), greatest(excluded.own_delay_min, o.delay_min, l.floor),
                   greatest(excluded.own_delay_max, o.delay_max, l.floor), excluded.declared_by
            from (select case when s.still then l.max_active end as max_active,
                         case when s.still then l.own_delay_min end as delay_min,
                         case when s.still then l.own_delay_max end as delay_max
                  from (select shoal.still_declared(l.declared_by, excluded.declared_by) as still) s) o)
        where not l.by_operator and l.declared_by < excluded.declared_by;
    select l.id into lane_id from shoal.lane l where l.run = 0 and l.key = lane_key for update;
    return lane_id;
end $$;

-- Request a slot in a host's lane for a request of an item of another lane; the same id is the same request. It waits
-- (`ahead` others are before it) and precedes the lane's own items, because its item already holds a slot of another
-- lane. blocked_seconds: the lane is blocked or paused for so long, and the request does not wait.
create or replace function shoal.request_slot(
    worker_no int, stage_id int, lane_key text, slot_id bigint,
    out is_granted boolean, out ahead int, out blocked_seconds double precision, out why text, out paced boolean)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    t timestamptz;
    lane_id bigint;
    l shoal.lane;
    v shoal.host_slot;
begin
    -- If it is declared lost at this moment, the reaper's next round releases the slot.
    if not exists (select 1 from shoal.worker w where w.no = worker_no and w.state in ('live', 'draining')) then
        raise exception using errcode = 'SH001', message = 'worker lost';
    end if;
    lane_id := shoal.host_lane(stage_id, lane_key);
    select x.* into l from shoal.lane x where x.id = lane_id;
    t := shoal.clock();
    is_granted := false;
    ahead := 0;
    paced := l.delay_max > 0;
    blocked_seconds := case when l.paused then 2 when l.blocked_until > t then extract(epoch from l.blocked_until - t) else 0 end;
    if blocked_seconds > 0 then
        why := case when l.paused then 'it is paused' else l.blocked_why end;
        perform shoal.release_slots(array[slot_id]);
        return;
    end if;
    select x.* into v from shoal.host_slot x where x.id = slot_id;
    if v.granted then
        is_granted := true;
        return;
    end if;
    if v.id is null then
        v := row(slot_id, l.id, t, worker_no, false)::shoal.host_slot;
        insert into shoal.host_slot select v.*;
        update shoal.lane x set slots_wanted = x.slots_wanted + 1 where x.id = l.id;
    end if;
    ahead := (select count(*) from shoal.host_slot x where x.lane = l.id and not x.granted and (x.since, x.id) < (v.since, v.id));
    if l.taken + l.slots_granted + ahead < l.max_active then
        is_granted := true;
        update shoal.host_slot x set granted = true where x.id = slot_id;
        update shoal.lane x set slots_granted = x.slots_granted + 1, slots_wanted = x.slots_wanted - 1 where x.id = l.id;
    end if;
end $$;

-- Release slots, or withdraw requests for them. The lanes admit others.
create or replace function shoal.release_slots(slots bigint[]) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    lanes bigint[];
begin
    lanes := array(select distinct v.lane from shoal.host_slot v where v.id = any (slots));
    if lanes = '{}' then
        return;
    end if;
    perform shoal.lock_lanes(lanes);
    with gone as (
        delete from shoal.host_slot v where v.id = any (slots) returning v.lane, v.granted
    )
    update shoal.lane l set slots_granted = l.slots_granted - n.granted, slots_wanted = l.slots_wanted - n.waiting
    from (select g.lane, count(*) filter (where g.granted)::int as granted,
                 count(*) filter (where not g.granted)::int as waiting
          from gone g group by g.lane) n
    where l.id = n.lane;
    perform shoal.admit(lanes, shoal.clock());
end $$;

-- A host asked to wait: no request for so many seconds; an existing longer block stays.
create or replace function shoal.block_host(stage_id int, lane_key text, wait double precision, why text) returns void
language plpgsql as $$
declare
    t timestamptz;
    lane_id bigint;
    was_blocked boolean;
begin
    lane_id := shoal.host_lane(stage_id, lane_key);
    t := shoal.clock();
    select coalesce(l.blocked_until > t, false) into was_blocked from shoal.lane l where l.id = lane_id;
    update shoal.lane l set blocked_until = t + shoal.seconds(wait), blocked_why = why
    where l.id = lane_id and coalesce(l.blocked_until < t + shoal.seconds(wait), true);
    if found then
        perform shoal.retime_delayed(lane_id, t);
        if not was_blocked then
            insert into shoal.event (at, actor, action, subject, detail)
            values (t, 'ledger', 'lane.blocked', lane_key, json_build_object('seconds', wait, 'why', why));
        end if;
    end if;
end $$;
