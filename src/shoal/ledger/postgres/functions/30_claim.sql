-- Take up to `most` ready items from these queues, up to most_of_each from each, in the order given; the caller orders
-- them (own partitions first, runs in turn, priorities of a run over all its queues). after_* is the keyset hint: where
-- this caller's last claim in the queue ended, so that dead rows of earlier claims are not read again. The outer LIMIT
-- stops the loop over queues as soon as there are enough rows, so the cost does not depend on the number of queues.
--
-- The rows are picked and locked first and passed as an array of ctid: the planner estimates ten rows for an array, so
-- it never reads a whole table to find them (for a LIMIT of unknown value it estimates a tenth of the table).
--
-- The caller sorts the rows.
--
-- A row whose lane was paused or blocked after it became ready is not leased; it goes to `delayed`, keeps its slot, and
-- is returned with deferred = true so that the caller claims again. There are never more of these than the lane's
-- limit. The same happens to a row whose lane may not start soon, because others have reserved starts since, or because
-- too many became ready before the lane had a delay, or before its limit was lowered. A claim locks no lane: the worker
-- that holds the lease reserves a start.
create or replace function shoal.claim(
    worker_no int, claim int, queues int[], after_priority int[], after_item bigint[], most_of_each int[], most int)
returns table (
    item bigint, epoch int, queue int, priority int, tries smallint, rescues smallint, max_attempts int,
    lane text, url text, key text, payload json, request json, depth smallint,
    deferred boolean, paced boolean, waited real)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    t timestamptz;
    places tid[];
begin
    perform shoal.lock_runs_shared(array(select k.run from shoal.queue k where k.id = any (queues)));
    t := shoal.clock();
    -- Decides the race with the reaper and with a caller that abandons this claim: the first to lock the row wins. The
    -- row is locked, not updated: while another session's snapshot is open, every version would be kept and read again.
    -- Heartbeats do not wait for this kind of lock, however long this claim waits for others.
    perform 1 from shoal.worker w where w.no = worker_no and w.state in ('live', 'draining') for key share;
    if not found then
        raise exception using errcode = 'SH001', message = 'worker lost';
    end if;
    if exists (select 1 from shoal.void_claim v where v.worker = worker_no and v.claim_no = claim) then
        raise exception using errcode = 'SH003', message = 'claim abandoned';
    end if;
    places := array(
        select x.ctid
        from (
            select u.queue, u.priority, u.item, u.share
            from unnest(queues, after_priority, after_item, most_of_each) with ordinality
                as u(queue, priority, item, share, ord)
            join shoal.queue k on k.id = u.queue
            join shoal.run r on r.no = k.run and r.state = 'active'
            order by u.ord
        ) q
        cross join lateral (
            select r.ctid
            from shoal.ready r
            where r.queue = q.queue and (r.priority, r.item) > (q.priority, q.item)
            order by r.priority, r.item
            limit q.share
            for update skip locked
        ) x
        limit most);
    if places = '{}' then
        return;
    end if;

    return query
    with gone as (
        delete from shoal.ready r where r.ctid = any (places)
        returning r.item, r.lane, r.since, r.queue, r.priority, r.epoch, r.tries, r.rescues
    ),
    classified as materialized (
        -- due: when a row that may not start now becomes ready again. Within seconds, so that lifting a block need not
        -- change these rows.
        select g.*, k.run, l.key as lane_key, coalesce(l.delay_max > 0, false) as paced,
               case when l.paused then t + interval '2 seconds'
                    when l.blocked_until > t then least(l.blocked_until, t + interval '10 seconds')
                    when l.delay_max > 0 and shoal.lane_due(l, t) > t
                    then least(shoal.lane_due(l, t), t + interval '10 seconds')
                    when l.delay_max > 0 and l.unstarted > shoal.lane_ahead(l) then t
                    when shoal.is_overfull(l) then t
               end as due
        from gone g join shoal.queue k on k.id = g.queue left join shoal.lane l on l.id = g.lane
    ),
    leased as (
        insert into shoal.lease
            (item, lane, claimed_at, epoch, worker, claim_no, run, queue, priority, tries, rescues, paced)
        select j.item, j.lane, t, j.epoch + 1, worker_no, claim, j.run, j.queue, j.priority, j.tries, j.rescues, j.paced
        from classified j where j.due is null
    ),
    sent_back as (
        insert into shoal.delayed
            (item, lane, due_at, since, run, queue, priority, epoch, tries, rescues, slotted, reason)
        select j.item, j.lane, j.due, t, j.run, j.queue, j.priority, j.epoch, j.tries, j.rescues, true, 'lane'
        from classified j where j.due is not null
    ),
    delta as (
        insert into shoal.count_delta (at, queue, ready, leased, delayed)
        select t, j.queue, -count(*), count(*) filter (where j.due is null), count(*) filter (where j.due is not null)
        from classified j group by j.queue
    )
    select j.item, j.epoch + 1, j.queue, j.priority, j.tries, j.rescues, i.max_attempts,
           j.lane_key, i.url, i.key, i.payload, i.request, i.depth, j.due is not null, j.paced,
           date_part('epoch', t - j.since)::real
    from classified j join shoal.item i on i.run = j.run and i.id = j.item;

    -- A claim counts as a heartbeat, once a second. Done last: from here the worker's heartbeats wait for this
    -- transaction.
    update shoal.worker w set heartbeat_at = shoal.clock()
    where w.no = worker_no and w.heartbeat_at < shoal.clock() - interval '1 second';
end $$;

-- The priorities of the first items of each queue, at most `depth`, without claiming them: when the queues of a run
-- have different priorities, a claim compares their first items.
create or replace function shoal.first_priorities(
    queues int[], after_priority int[], after_item bigint[], depth int) returns table (priorities int[])
language sql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
    select array(
        select r.priority from shoal.ready r
        where r.queue = u.queue and (r.priority, r.item) > (u.priority, u.item)
        order by r.priority, r.item limit depth)
    from unnest(queues, after_priority, after_item) with ordinality as u(queue, priority, item, ord)
    order by u.ord
$$;

-- The items of a claim whose answer was lost. A claim that has not reached the server yet is void from now on.
create or replace function shoal.recall(worker_no int, claim int)
returns table (
    item bigint, epoch int, queue int, priority int, tries smallint, rescues smallint, max_attempts int,
    lane text, url text, key text, payload json, request json, depth smallint,
    deferred boolean, paced boolean, waited real)
language plpgsql as $$
begin
    -- Waits for the claim if it is running.
    perform 1 from shoal.worker w where w.no = worker_no for update;
    insert into shoal.void_claim (worker, claim_no, at) values (worker_no, claim, shoal.clock()) on conflict do nothing;
    return query
    select s.item, s.epoch, s.queue, s.priority, s.tries, s.rescues, i.max_attempts,
           l.key, i.url, i.key, i.payload, i.request, i.depth, false, s.paced, null::real
    from shoal.lease s
    join shoal.item i on i.run = s.run and i.id = s.item
    left join shoal.lane l on l.id = s.lane
    where s.worker = worker_no and s.claim_no = claim;
end $$;

-- Mark items as started without a reservation. A lane with a delay counts from now and admits its next item. Returns
-- the items whose lease is still valid.
create or replace function shoal.mark_started(items bigint[], epochs int[]) returns bigint[]
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    t timestamptz;
    lanes bigint[];
    held bigint[];
begin
    perform shoal.lock_runs_shared(array(select s.run from shoal.lease s where s.item = any (items)));
    lanes := array(select distinct s.lane from shoal.lease s where s.item = any (items) and s.lane is not null);
    perform shoal.lock_lanes(lanes);
    t := shoal.clock();
    with begun as (
        update shoal.lease s set started_at = t
        from unnest(items, epochs) as u(item, epoch)
        where s.item = u.item and s.epoch = u.epoch and s.started_at is null
        returning s.lane
    )
    update shoal.lane l
    set unstarted = l.unstarted - n.n,
        next_at = case when l.delay_max > 0 then greatest(l.next_at, t + shoal.lane_pause(l)) else l.next_at end
    from (select b.lane, count(*)::int as n from begun b where b.lane is not null group by b.lane) n
    where l.id = n.lane;
    perform shoal.admit(lanes, t);
    select array_agg(s.item) into held
    from shoal.lease s join unnest(items, epochs) as u(item, epoch) on s.item = u.item and s.epoch = u.epoch;
    return coalesce(held, '{}');
end $$;

-- Whether a lane has admitted more than its limit, because that was lowered since.
create or replace function shoal.is_overfull(l shoal.lane) returns boolean
language sql immutable as $$
    select l.taken + l.slots_granted > l.max_active
$$;

-- Whether a delayed item that is due returns to `waiting` instead of `ready`.
create or replace function shoal.loses_slot(slotted boolean, l shoal.lane, run_state text) returns boolean
language sql immutable as $$
    select not slotted or (l.run = 0 and run_state <> 'active')
        or (l.delay_max > 0 and l.unstarted > shoal.lane_ahead(l)) or shoal.is_overfull(l)
$$;

-- Move items that are due, at most `most`: to ready if they have a slot or no lane, otherwise to waiting. A paused run
-- loses its slots in shared lanes. So do items of a lane that has too many unstarted items admitted, from before it had
-- a delay or a lower limit: they are admitted again in order.
--
-- waits: wait for locked lanes as long as lock_timeout allows; otherwise the items of those lanes are skipped.
create or replace function shoal.promote_due(most int, waits boolean) returns int
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
    t timestamptz := shoal.clock();
    due_items bigint[];
    runs int[];
    lanes bigint[];
    held bigint[] := '{}';
    moved int;
begin
    due_items := array(select d.item from shoal.delayed d where d.due_at <= t order by d.due_at limit most);
    if due_items = '{}' then
        return 0;
    end if;
    -- A run whose lock is taken is being paused or cancelled: its rows are moved later.
    runs := array(
        with r as materialized (select distinct d.run as no from shoal.delayed d where d.item = any (due_items))
        select r.no from r where pg_catalog.pg_try_advisory_xact_lock_shared(21320, r.no));
    lanes := array(
        select distinct d.lane from shoal.delayed d
        join shoal.lane l on l.id = d.lane join shoal.run r on r.no = d.run
        where d.item = any (due_items) and d.run = any (runs)
          and shoal.loses_slot(d.slotted, l, case when r.idle then 'idle' else r.state end));
    if waits then
        perform shoal.lock_lanes(lanes);
    else
        held := lanes;
        lanes := shoal.lock_free_lanes(lanes);
        held := array(select u.lane from unnest(held) as u(lane) where u.lane <> all (lanes));
    end if;
    with gone as (
        delete from shoal.delayed d
        where d.item in (
            -- due_at is checked again: another transaction may have moved the row and delayed it again.
            select x.item from shoal.delayed x
            where x.item = any (due_items) and x.run = any (runs) and x.due_at <= t
              and (x.lane is null or x.lane = any (lanes) or (x.slotted and x.lane <> all (held)))
            for update skip locked)
        returning d.*
    ),
    classified as materialized (
        select g.*, coalesce(g.lane = any (lanes), false)
                    and shoal.loses_slot(g.slotted, l, case when r.idle then 'idle' else r.state end) as in_line
        from gone g join shoal.run r on r.no = g.run left join shoal.lane l on l.id = g.lane
    ),
    to_ready as (
        insert into shoal.ready (item, lane, since, queue, priority, epoch, tries, rescues)
        select j.item, j.lane, t, j.queue, j.priority, j.epoch, j.tries, j.rescues
        from classified j where not j.in_line
    ),
    to_waiting as (
        insert into shoal.waiting (item, lane, since, run, queue, priority, epoch, tries, rescues)
        select j.item, j.lane, t, j.run, j.queue, j.priority, j.epoch, j.tries, j.rescues
        from classified j where j.in_line
    ),
    counted as (
        update shoal.lane l
        set waiting = l.waiting + n.n, taken = l.taken - n.slotted, unstarted = l.unstarted - n.slotted
        from (select j.lane, count(*)::int as n, count(*) filter (where j.slotted)::int as slotted
              from classified j where j.in_line group by j.lane) n
        where l.id = n.lane
    ),
    delta as (
        insert into shoal.count_delta (at, queue, delayed, ready, waiting)
        select t, j.queue, -count(*), count(*) filter (where not j.in_line), count(*) filter (where j.in_line)
        from classified j group by j.queue
    )
    select count(*) into moved from classified;
    perform shoal.admit(lanes, t);
    if moved > 0 then
        perform shoal.wake();
    end if;
    return moved;
end $$;
