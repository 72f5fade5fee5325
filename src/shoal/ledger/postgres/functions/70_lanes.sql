-- Lock a lane for an order; a shared one is made if need be. Null when the run has none of that name.
create or replace function shoal.take_lane(run_no int, lane_key text) returns bigint
language plpgsql as $$
declare
    lane_id bigint;
begin
    if run_no = 0 then
        insert into shoal.lane (run, key, max_active, delay_min, delay_max, ordered)
        values (0, lane_key, 1, 0, 0, false) on conflict (run, key) do nothing;
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
begin
    lane_id := shoal.take_lane(run_no, lane_key);
    if lane_id is null then
        return null;
    end if;
    t := shoal.clock();
    update shoal.lane l
    set max_active = coalesce(new_limit, l.max_active),
        delay_min = coalesce(new_delay_min, l.delay_min),
        delay_max = coalesce(new_delay_max, l.delay_max),
        paused = coalesce(new_paused, l.paused),
        by_operator = l.by_operator or new_limit is not null or new_delay_min is not null,
        next_at = case when l.next_at > t + shoal.seconds(new_delay_max) then t + shoal.seconds(new_delay_max)
                       else l.next_at end
    where l.id = lane_id;
    perform shoal.recall_delayed(lane_id, t);
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
    perform shoal.recall_delayed(lane_id, t);
    perform shoal.admit(array[lane_id], t);
    insert into shoal.event (at, run, actor, action, subject, detail)
    values (t, nullif(run_no, 0), actor, 'lane.blocked', lane_key, json_build_object('seconds', wait, 'why', why));
    perform shoal.wake();
    return lane_id;
end $$;

-- Items that were let out to wait for a time that no longer counts may start sooner.
create or replace function shoal.recall_delayed(lane_id bigint, t timestamptz) returns void
language sql as $$
    update shoal.delayed d set due_at = greatest(t, l.next_at, l.blocked_until)
    from shoal.lane l
    where l.id = lane_id and d.lane = lane_id and d.slotted and d.reason = 'lane'
      and d.due_at > greatest(t, l.next_at, l.blocked_until)
$$;
