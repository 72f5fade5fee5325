-- Lock a lane for an order; a shared one is made if need be. Null when the run has none of that name.
create or replace function shoal.take_lane(run_no int, lane_key text) returns bigint
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

-- Set what is not null. A lane that an operator has set keeps that whatever stages declare later.
create or replace function shoal.set_lane(
    run_no int, lane_key text, new_limit int, new_delay_min real, new_delay_max real, new_paused boolean, actor text)
returns bigint
language plpgsql as $$
declare
    t timestamptz;
    lane_id bigint;
    was_paced boolean;
begin
    lane_id := shoal.take_lane(run_no, lane_key);
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

-- Nothing of the lane starts for so long; 0 lifts a block.
create or replace function shoal.block_lane(run_no int, lane_key text, wait double precision, why text, actor text)
returns bigint
language plpgsql as $$
declare
    t timestamptz;
    lane_id bigint;
begin
    lane_id := shoal.take_lane(run_no, lane_key);
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

-- At least so many seconds between two starts, whatever stages declare; 0 lifts it.
create or replace function shoal.slow_lane(run_no int, lane_key text, new_floor double precision, why text)
returns bigint
language plpgsql as $$
declare
    t timestamptz;
    lane_id bigint;
    was_paced boolean;
begin
    lane_id := shoal.take_lane(run_no, lane_key);
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

-- A lane's delay was changed. A shorter one counts at once. One that is new counts from now if items of the lane are
-- leased: their requests leave unheard of, any moment. What was let out before is held back when it is claimed.
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

-- Items that were let out to wait for their lane wait until it may start again: sooner or later than before.
create or replace function shoal.retime_delayed(lane_id bigint, t timestamptz) returns void
language sql as $$
    update shoal.delayed d set due_at = greatest(t, l.next_at, l.blocked_until)
    from shoal.lane l
    where l.id = lane_id and d.lane = lane_id and d.slotted and d.reason = 'lane'
      and d.due_at <> greatest(t, l.next_at, l.blocked_until)
$$;

-- One more start on a lane, beyond an item's own: seconds until it may leave. Below 0: nothing was reserved, ask again
-- after so long. That is so while an item of the lane may start any moment, and when others have reserved more than a
-- minute ahead already: a block that is lifted then does not leave the lane waiting for hours.
create or replace function shoal.turn(run_no int, lane_key text, slack double precision)
returns double precision
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    t timestamptz := shoal.clock();
    l shoal.lane;
    starts_at timestamptz;
    too_early double precision;
begin
    select x.* into l from shoal.lane x where x.run = run_no and x.key = lane_key;
    if l.delay_max > 0 then
        select x.* into l from shoal.lane x where x.id = l.id for update;
        t := shoal.clock();
    end if;
    starts_at := greatest(t, l.blocked_until);
    if l.delay_max > 0 then
        -- A claim of the lane's item would have locked the lane too, so what it did is seen here.
        if exists (select 1 from shoal.lease s where s.lane = l.id and s.paced and s.started_at is null) then
            return -0.05;
        end if;
        starts_at := greatest(starts_at, shoal.lane_next_at(l, t));
        too_early := extract(epoch from starts_at - t) - l.delay_max - 60;
        if too_early > 0 then
            return -least(too_early, 10);
        end if;
        -- The turn may be used so late: what follows keeps that much more distance.
        update shoal.lane x
        set next_at = starts_at + shoal.lane_pause(l) + shoal.seconds(slack) where x.id = l.id;
        perform shoal.retime_delayed(l.id, t);
    end if;
    return extract(epoch from starts_at - t);
end $$;
