-- Admit as many items from `waiting` as the lanes allow. The caller took the lanes' locks in an EARLIER statement, so
-- this one has a newer snapshot and sees the items that other transactions have queued for these lanes.
--
-- Items of a lane with a delay are admitted shortly (shoal.lane_lead) before they may start, and only as many as start
-- within that time: their workers reserve the starts (shoal.reserve) and sleep until then, so no time is lost.
-- Runs that wait for the same lane take turns; rows of paused and idle runs are not read.
create or replace function shoal.admit(lanes bigint[], t timestamptz) returns int
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    runs int[];
    places tid[];
begin
    if lanes is null then
        return 0;
    end if;
    -- With few active runs, test each lane for each of them; with many, find the runs that wait for each lane.
    runs := array(select r.no from shoal.run r where r.state = 'active' and not r.idle limit 9);
    if cardinality(runs) < 9 then
        runs := array(
            select distinct r.no
            from shoal.lane l
            join shoal.run r on r.no = any (runs) and (l.run = 0 or l.run = r.no)
            -- Ordered, so that the planner uses the index for the first row.
            cross join lateral (select from shoal.waiting w where w.lane = l.id and w.run = r.no
                                order by w.priority, w.item limit 1) w
            where l.id = any (lanes) and shoal.lane_allowance(l) > 0);
    else
        runs := array(
            select distinct x.run
            from shoal.lane l
            cross join lateral (
                with recursive x(run) as (
                    (select w.run from shoal.waiting w where w.lane = l.id order by w.run limit 1)
                    union all
                    select (select w.run from shoal.waiting w where w.lane = l.id and w.run > x.run
                            order by w.run limit 1)
                    from x where x.run is not null)
                select x.run from x
            ) x
            join shoal.run r on r.no = x.run and r.state = 'active' and not r.idle
            where l.id = any (lanes) and shoal.lane_allowance(l) > 0);
    end if;
    if runs = '{}' then
        return 0;
    end if;
    -- A run whose lock is taken is being paused or cancelled: skip its rows; the lane sweep repeats this later.
    runs := array(
        with r as materialized (select u.no from unnest(runs) as u(no) order by u.no)
        select r.no from r where pg_catalog.pg_try_advisory_xact_lock_shared(21320, r.no));

    places := array(
        select w.ctid
        from shoal.lane l
        cross join lateral (
            select h.ctid
            from shoal.run r
            cross join lateral (
                select w.ctid, row_number() over (order by w.priority, w.item) as turn
                from shoal.waiting w
                where w.lane = l.id and w.run = r.no
                order by w.priority, w.item
                limit shoal.lane_allowance(l)
            ) h
            where r.no = any (runs) and r.state = 'active' and not r.idle
            order by h.turn, random()
            limit shoal.lane_allowance(l)
        ) w
        where l.id = any (lanes) and shoal.lane_allowance(l) > 0);

    with picked as (
        delete from shoal.waiting w where w.ctid = any (places) returning w.*
    ),
    placed as materialized (
        select p.*, shoal.lane_due(l, t) as due
        from picked p join shoal.lane l on l.id = p.lane
    ),
    to_ready as (
        insert into shoal.ready (item, lane, since, queue, priority, epoch, tries, rescues)
        select p.item, p.lane, t, p.queue, p.priority, p.epoch, p.tries, p.rescues
        from placed p where p.due is null or p.due <= t
    ),
    to_delayed as (
        insert into shoal.delayed
            (item, lane, due_at, since, run, queue, priority, epoch, tries, rescues, slotted, reason)
        select p.item, p.lane, p.due, t, p.run, p.queue, p.priority, p.epoch, p.tries, p.rescues, true, 'lane'
        from placed p where p.due > t
    ),
    counted as (
        update shoal.lane l
        set taken = l.taken + n.n, unstarted = l.unstarted + n.n, waiting = l.waiting - n.n,
            next_at = shoal.lane_next_at(l, t)
        from (select p.lane, count(*)::int as n from placed p group by p.lane) n
        where l.id = n.lane
    )
    insert into shoal.count_delta (at, queue, waiting, ready, delayed)
    select t, p.queue, -count(*),
           count(*) filter (where p.due is null or p.due <= t), count(*) filter (where p.due > t)
    from placed p group by p.queue;
    return coalesce(cardinality(places), 0);
end $$;

-- How long before its start an item is admitted: enough for a claim and a reservation.
create or replace function shoal.lane_lead() returns interval
language sql immutable as $$ select interval '100 milliseconds' $$;

-- How many items without a start a lane with a delay may have admitted.
create or replace function shoal.lane_ahead(l shoal.lane) returns int
language sql immutable as $$
    select 1 + least(1000000, floor(extract(epoch from shoal.lane_lead()) / l.delay_max))::int
$$;

-- How many more items a lane admits now.
create or replace function shoal.lane_allowance(l shoal.lane) returns int
language sql immutable as $$
    select case
        when l.paused or l.waiting = 0 then 0
        when l.delay_max > 0
        then greatest(0, least(l.max_active - l.taken - l.slots_granted - l.slots_wanted, shoal.lane_ahead(l) - l.unstarted))
        else greatest(0, l.max_active - l.taken - l.slots_granted - l.slots_wanted)
    end
$$;

-- When the lane may start again. Starts are reserved at most a minute ahead (see shoal.reserve), so a later time was
-- written before the clock was set back, and must not stop the lane.
create or replace function shoal.lane_next_at(l shoal.lane, t timestamptz) returns timestamptz
language sql immutable as $$
    select case when l.next_at > t + interval '1 minute' + shoal.seconds(2 * l.delay_max)
                then t + shoal.seconds(l.delay_max) else l.next_at end
$$;

-- When the lane's next item may be admitted.
create or replace function shoal.lane_due(l shoal.lane, t timestamptz) returns timestamptz
language sql immutable as $$
    select case when l.delay_max > 0 then greatest(shoal.lane_next_at(l, t) - shoal.lane_lead(), l.blocked_until)
                else l.blocked_until end
$$;

-- A random delay within a lane's range.
create or replace function shoal.lane_pause(l shoal.lane) returns interval
language sql volatile as $$
    select shoal.seconds(l.delay_min + random() * (l.delay_max - l.delay_min))
$$;

-- One step through all lanes in the order of their ids: admit items from those of the next `most` lanes that have room,
-- which happens after a raised limit or a try-lock that failed. The cursor is stored, so that any worker continues; one
-- at a time. Lanes that are locked are skipped. more: the end has not been reached.
create or replace function shoal.sweep_step(most int, out moved int, out more boolean)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    begin_after bigint;
    last bigint;
    seen int;
    lanes bigint[];
begin
    moved := 0;
    more := false;
    select k.cursor into begin_after from shoal.tick k where k.name = 'lanes' for update skip locked;
    if not found then
        return;
    end if;
    select max(x.id), count(*), array_agg(x.id) filter (where x.has_room) into last, seen, lanes
    from (
        select l.id, shoal.lane_allowance(l) > 0 and exists (
            -- Steps from one waiting run to the next along the index.
            with recursive x(run) as (
                (select w.run from shoal.waiting w where w.lane = l.id order by w.run limit 1)
                union all
                select (select w.run from shoal.waiting w where w.lane = l.id and w.run > x.run order by w.run limit 1)
                from x where x.run is not null)
            select 1 from x join shoal.run r on r.no = x.run and r.state = 'active' and not r.idle) as has_room
        from shoal.lane l where l.id > begin_after order by l.id limit most
    ) x;
    more := seen = most;
    update shoal.tick k set cursor = case when more then last else 0 end where k.name = 'lanes';
    if lanes is not null then
        lanes := shoal.lock_free_lanes(lanes);
        moved := shoal.admit(lanes, shoal.clock());
    end if;
end $$;
