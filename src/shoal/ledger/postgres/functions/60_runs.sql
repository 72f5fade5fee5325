-- Changes of many items, in steps of a bounded number of rows, each a short transaction. What is to be done is stored
-- first (the run's state, or its lane_work), so that any process can continue.
--
-- The plans must not depend on statistics. A table that was empty when it was analysed counts as empty for the planner
-- however large it is now, and then all plans cost the same. So: no sequential scans, no hash and no merge joins; rows
-- are picked by LATERAL ... LIMIT, whose join order is fixed; and ranges are comparisons of whole index keys, which
-- only one index can answer.

-- End these items of a run as cancelled, whatever their state; without a reason (a removed run) no outcome is stored.
-- The run's lock is held exclusively, so nothing of it moves meanwhile; operators' changes of lanes wait for the lanes'
-- locks.
create or replace function shoal.cancel_items(run_no int, items bigint[], reason text) returns int
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    t timestamptz;
    lanes bigint[];
    ids bigint[];
    id_queues int[];
    id_priorities int[];
    id_lanes bigint[];
    in_ready tid[];
    in_waiting tid[];
    in_delayed tid[];
    n int;
begin
    perform shoal.lock_run(run_no);
    select array_agg(i.id), array_agg(i.queue), array_agg(i.priority), array_agg(i.lane), array_agg(distinct i.lane)
    into ids, id_queues, id_priorities, id_lanes, lanes
    from (select distinct u.id from unnest(items) as u(id)) u
    cross join lateral (select i.id, i.queue, i.priority, i.lane from shoal.item i
                        where i.run = run_no and i.id = u.id limit 1) i;
    if ids is null then
        return 0;
    end if;
    lanes := array_remove(lanes, null);
    perform shoal.lock_lanes(lanes);
    t := shoal.clock();
    in_ready := array(
        select r.ctid from unnest(ids, id_queues, id_priorities) as f(id, queue, priority)
        cross join lateral (select r.ctid from shoal.ready r
                            where r.queue = f.queue and r.priority = f.priority and r.item = f.id limit 1) r);
    in_waiting := array(
        select w.ctid from unnest(ids, id_queues, id_priorities, id_lanes) as f(id, queue, priority, lane)
        cross join lateral (select w.ctid from shoal.waiting w
                            where w.lane = f.lane and w.run = run_no and w.priority = f.priority and w.item = f.id
                              and w.queue = f.queue limit 1) w);
    in_delayed := array(
        select d.ctid from unnest(ids, id_queues) as f(id, queue)
        cross join lateral (select d.ctid from shoal.delayed d
                            where d.item = f.id and d.queue = f.queue limit 1) d);
    with from_ready as (
        delete from shoal.ready r where r.ctid = any (in_ready)
        returning r.item, r.lane, r.queue, r.epoch, r.tries, r.rescues
    ),
    from_waiting as (
        delete from shoal.waiting w where w.ctid = any (in_waiting)
        returning w.item, w.lane, w.queue, w.epoch, w.tries, w.rescues
    ),
    from_delayed as (
        delete from shoal.delayed d where d.ctid = any (in_delayed)
        returning d.item, d.lane, d.queue, d.epoch, d.tries, d.rescues, d.slotted
    ),
    from_lease as (
        delete from shoal.lease s where s.item = any (ids)
        returning s.item, s.lane, s.queue, s.epoch, s.tries, s.rescues, s.worker, s.claimed_at, s.started_at
    ),
    gone as materialized (
        select item, lane, queue, epoch, tries, rescues, null::int as worker, t as claimed_at,
               true as slotted, true as unstarted, 'ready' as place from from_ready
        union all
        select item, lane, queue, epoch, tries, rescues, null, t, false, false, 'waiting' from from_waiting
        union all
        select item, lane, queue, epoch, tries, rescues, null, t, slotted, slotted, 'delayed' from from_delayed
        union all
        select item, lane, queue, epoch, tries, rescues, worker, claimed_at, true, started_at is null, 'leased'
        from from_lease
    ),
    ended as (
        insert into shoal.outcome (item, claimed_at, ended_at, run, queue, epoch, worker, seconds, tries, rescues,
                                   state, outcome, error)
        select g.item, g.claimed_at, t, run_no, g.queue, g.epoch, g.worker, 0, g.tries, g.rescues,
               'cancelled', 'cancelled', reason
        from gone g where reason is not null
    ),
    freed as (
        update shoal.lane l
        set taken = l.taken - n.slotted, unstarted = l.unstarted - n.unstarted, waiting = l.waiting - n.waiting
        from (select g.lane, count(*) filter (where g.slotted)::int as slotted,
                     count(*) filter (where g.unstarted)::int as unstarted,
                     count(*) filter (where g.place = 'waiting')::int as waiting
              from gone g where g.lane is not null group by g.lane) n
        where l.id = n.lane
    ),
    delta as (
        insert into shoal.count_delta (at, queue, cancelled, ready, waiting, delayed, leased)
        select t, g.queue, case when reason is null then 0 else count(*) end,
               -count(*) filter (where g.place = 'ready'), -count(*) filter (where g.place = 'waiting'),
               -count(*) filter (where g.place = 'delayed'), -count(*) filter (where g.place = 'leased')
        from gone g group by g.queue
    )
    select count(*) into n from gone g;
    perform shoal.admit(lanes, t);
    return n;
end $$;

-- Retry dead, skipped or cancelled items: their outcome becomes an ordinary attempt, tries and rescues start at 0, the epoch
-- continues. A finished or cancelled run becomes active.
create or replace function shoal.retry_items(run_no int, items bigint[]) returns int
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    t timestamptz;
    lanes bigint[];
    ended tid[];
    n int;
begin
    perform shoal.lock_run(run_no);
    if not exists (select 1 from shoal.run r where r.no = run_no and r.state <> 'removed') then
        return 0;
    end if;
    ended := array(
        select o.ctid from (select distinct u.id from unnest(items) as u(id)) u
        cross join lateral (select o.ctid from shoal.outcome o
                            where o.run = run_no and o.item = u.id and o.state in ('dead', 'skipped', 'cancelled') limit 1) o);
    if ended = '{}' then
        return 0;
    end if;
    lanes := array(
        select distinct i.lane from unnest(items) as u(id)
        cross join lateral (select i.lane from shoal.item i where i.run = run_no and i.id = u.id limit 1) i
        where i.lane is not null);
    perform shoal.lock_lanes(lanes);
    t := shoal.clock();
    with revived as (
        delete from shoal.outcome o where o.ctid = any (ended) returning o.*
    ),
    placed as materialized (
        select v.*, i.lane, i.priority from revived v
        cross join lateral (select i.lane, i.priority from shoal.item i
                            where i.run = v.run and i.id = v.item limit 1) i
    ),
    fewer_failures as (
        update shoal.failure_group g set items = g.items - n.n
        from (select p.failure, count(*) as n from placed p where p.failure is not null group by p.failure) n
        where g.id = n.failure
    ),
    discarded as (
        -- Records that were stored when the item died.
        delete from shoal.result x using placed p where x.run = run_no and x.item = p.item returning p.queue, p.item
    ),
    fewer_results as (
        insert into shoal.count_delta (at, queue, results)
        select t, d.queue, -count(*) from discarded d group by d.queue
    ),
    logged as (
        -- Readers of the log may have these records: they are told that there are none any more.
        insert into shoal.result_change (at, run, stage, records, replaced, items)
        select t, run_no, k.stage, 0, true, array_agg(distinct d.item order by d.item)
        from discarded d cross join lateral (select k.stage from shoal.queue k where k.id = d.queue limit 1) k
        group by k.stage
    ),
    history as (
        -- An item that ended before its first claim has no attempt to keep.
        insert into shoal.attempt (item, claimed_at, ended_at, run, epoch, worker, seconds, outcome, error, detail)
        select p.item, p.claimed_at, p.ended_at, run_no, p.epoch, p.worker, p.seconds, p.outcome, p.error, p.detail
        from placed p where p.epoch > 0
        on conflict (run, item, epoch) do nothing
    ),
    to_ready as (
        insert into shoal.ready (item, lane, since, queue, priority, epoch, tries, rescues)
        select p.item, null, t, p.queue, p.priority, p.epoch, 0, 0 from placed p where p.lane is null
    ),
    to_waiting as (
        insert into shoal.waiting (item, lane, since, run, queue, priority, epoch, tries, rescues)
        select p.item, p.lane, t, run_no, p.queue, p.priority, p.epoch, 0, 0 from placed p where p.lane is not null
    ),
    counted as (
        update shoal.lane l set waiting = l.waiting + n.n
        from (select p.lane, count(*)::int as n from placed p where p.lane is not null group by p.lane) n
        where l.id = n.lane
    ),
    delta as (
        insert into shoal.count_delta (at, queue, dead, skipped, cancelled, ready, waiting)
        select t, p.queue, -count(*) filter (where p.state = 'dead'), -count(*) filter (where p.state = 'skipped'),
               -count(*) filter (where p.state = 'cancelled'),
               count(*) filter (where p.lane is null), count(*) filter (where p.lane is not null)
        from placed p group by p.queue
    )
    select count(*) into n from placed;
    if n > 0 then
        with woken as (
            update shoal.run r set state = 'active', finished_at = null, changed_at = t
            where r.no = run_no and r.state in ('finished', 'cancelled') returning r.id
        )
        insert into shoal.event (at, run, actor, action, subject, detail)
        select t, run_no, 'ledger', 'run.active', w.id, '{"because": "items are retried"}' from woken w;
        perform shoal.admit(lanes, t);
        perform shoal.wake();
    end if;
    return n;
end $$;

-- The run's next queue after this one; null when there is none.
create or replace function shoal.next_queue(run_no int, after_queue int) returns int
language sql stable as $$
    select k.id from shoal.queue k where k.run = run_no and k.id > after_queue order by k.id limit 1
$$;

-- One step of ending the open items of a cancelled or removed run, whose items are neither claimed nor admitted.
-- `place` is the cursor, null to begin; null in the answer means that the pass is complete. Leases first, so that no
-- commit adds items; ready last, because items that become due go there.
create or replace function shoal.cancel_open_items(
    run_no int, reason text, most int, inout place bigint[], out ended int)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    table_no int := coalesce(place[1], 1);
    at_queue int := coalesce(place[2], 0);
    at_priority int := coalesce(place[3], -2147483648);
    at_item bigint := coalesce(place[4], 0);
    items bigint[];
    last_priority int;
begin
    ended := 0;
    perform shoal.lock_run(run_no);
    if not exists (select 1 from shoal.run r
                   where r.no = run_no and r.state = case when reason is null then 'removed' else 'cancelled' end) then
        place := null;
        return;
    end if;
    loop
        case table_no
        when 1 then
            items := array(select s.item from shoal.lease s where s.run = run_no and s.item > at_item
                           order by s.item limit most);
        when 2 then
            items := array(select d.item from shoal.delayed d
                           where (d.queue, d.item) > (at_queue, at_item) and (d.queue, d.item) < (at_queue + 1, 0)
                           order by d.queue, d.item limit most);
        when 3 then
            items := array(select w.item from shoal.waiting w
                           where (w.queue, w.item) > (at_queue, at_item) and (w.queue, w.item) < (at_queue + 1, 0)
                           order by w.queue, w.item limit most);
        else
            select array_agg(x.item order by x.priority, x.item), max(x.priority) into items, last_priority
            from (select r.priority, r.item from shoal.ready r
                  where (r.queue, r.priority, r.item) > (at_queue, at_priority, at_item)
                    and (r.queue, r.priority, r.item) < (at_queue + 1, -2147483648, 0)
                  order by r.queue, r.priority, r.item limit most) x;
        end case;
        if cardinality(items) > 0 then
            place := array[table_no, at_queue, coalesce(last_priority, at_priority), items[cardinality(items)]];
            ended := shoal.cancel_items(run_no, items, reason);
            return;
        end if;
        at_queue := case when table_no > 1 then shoal.next_queue(run_no, at_queue) end;
        if at_queue is null then
            table_no := table_no + 1;
            at_queue := shoal.next_queue(run_no, 0);
        end if;
        at_priority := -2147483648;
        at_item := 0;
        if table_no > 4 or at_queue is null then
            place := null;
            return;
        end if;
    end loop;
end $$;

-- One step of a run's lane work; true means that there is more to do now.
--
-- `release`: the run was paused, or no worker serves it, so it must not keep slots in shared lanes: its admitted items
-- return to `waiting`. This is deferred until another run waits for a lane, because then nothing may have to be moved
-- at all. `readmit`: the run is active again, so its lanes admit items.
create or replace function shoal.apply_lane_work(run_no int, most int) returns boolean
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    work text;
    place bigint[];
begin
    select r.lane_work into work from shoal.run r where r.no = run_no;
    if work = 'release' then
        if not shoal.others_wait(run_no) then
            return false;
        end if;
        perform shoal.lock_run(run_no);
    elsif work = 'readmit' then
        perform shoal.lock_runs_shared(array[run_no]);
    else
        return false;
    end if;
    -- Checked again under the lock. Two processes that continue at once take turns.
    select r.lane_work_cursor into place from shoal.run r where r.no = run_no and r.lane_work = work for no key update;
    if not found then
        return true;
    end if;
    if work = 'release' then
        place := shoal.release_lane_slots(run_no, place, most);
    else
        place := shoal.readmit_from_lanes(run_no, place, most);
    end if;
    update shoal.run r set lane_work = case when place is not null then work end, lane_work_cursor = place
    where r.no = run_no;
    return place is not null;
end $$;

-- Whether another active run that workers serve has items waiting for lanes.
create or replace function shoal.others_wait(run_no int) returns boolean
language sql stable as $$
    select exists (
        select 1
        from (select c.queue, c.waiting from shoal.queue_count c where c.waiting <> 0
              union all select d.queue, d.waiting from shoal.count_delta d where d.waiting <> 0) x
        join shoal.queue k on k.id = x.queue
        join shoal.run r on r.no = k.run and r.state = 'active' and not r.idle and r.no <> run_no
        group by x.queue having sum(x.waiting) > 0)
$$;

-- Return the next admitted items of a run to `waiting` of their shared lanes. Returns the cursor; null: all done. The
-- caller holds the run's lock exclusively.
create or replace function shoal.release_lane_slots(run_no int, place bigint[], most int) returns bigint[]
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    t timestamptz;
    table_no int := coalesce(place[1], 1);
    at_queue int := coalesce(place[2], shoal.next_queue(run_no, 0));
    at_priority int := coalesce(place[3], -2147483648);
    at_item bigint := coalesce(place[4], 0);
    priorities int[];
    items bigint[];
    lanes bigint[];
    shared bigint[];
    in_ready tid[] := '{}';
    in_delayed tid[] := '{}';
begin
    loop
        if at_queue is null then
            table_no := table_no + 1;
            at_queue := shoal.next_queue(run_no, 0);
        end if;
        if table_no > 2 or at_queue is null then
            return null;
        end if;
        if table_no = 1 then
            select array_agg(x.item), array_agg(at_priority), array_agg(x.lane) into items, priorities, lanes
            from (select d.item, case when d.slotted then d.lane end as lane from shoal.delayed d
                  where (d.queue, d.item) > (at_queue, at_item) and (d.queue, d.item) < (at_queue + 1, 0)
                  order by d.queue, d.item limit most) x;
        else
            select array_agg(x.item), array_agg(x.priority), array_agg(x.lane) into items, priorities, lanes
            from (select r.item, r.priority, r.lane from shoal.ready r
                  where (r.queue, r.priority, r.item) > (at_queue, at_priority, at_item)
                    and (r.queue, r.priority, r.item) < (at_queue + 1, -2147483648, 0)
                  order by r.queue, r.priority, r.item limit most) x;
        end if;
        exit when items is not null;
        at_queue := shoal.next_queue(run_no, at_queue);
        at_priority := -2147483648;
        at_item := 0;
    end loop;
    shared := array(
        select l.id from (select distinct u.lane from unnest(lanes) as u(lane) where u.lane is not null) u
        cross join lateral (select l.id from shoal.lane l where l.id = u.lane and l.run = 0 limit 1) l);
    if shared <> '{}' then
        perform shoal.lock_lanes(shared);
        t := shoal.clock();
        if table_no = 1 then
            in_delayed := array(
                select d.ctid from unnest(items, lanes) as u(item, lane)
                cross join lateral (select d.ctid from shoal.delayed d
                                    where d.item = u.item and d.queue = at_queue and d.slotted limit 1) d
                where u.lane = any (shared));
        else
            in_ready := array(
                select r.ctid from unnest(items, priorities, lanes) as u(item, priority, lane)
                cross join lateral (select r.ctid from shoal.ready r
                                    where r.queue = at_queue and r.priority = u.priority and r.item = u.item limit 1) r
                where u.lane = any (shared));
        end if;
        with from_ready as (
            delete from shoal.ready r where r.ctid = any (in_ready)
            returning r.item, r.lane, r.queue, r.priority, r.epoch, r.tries, r.rescues
        ),
        from_delayed as (
            delete from shoal.delayed d where d.ctid = any (in_delayed)
            returning d.item, d.lane, d.queue, d.priority, d.epoch, d.tries, d.rescues
        ),
        gone as materialized (
            select f.*, true as was_ready from from_ready f union all select f.*, false from from_delayed f
        ),
        to_waiting as (
            insert into shoal.waiting (item, lane, since, run, queue, priority, epoch, tries, rescues)
            select g.item, g.lane, t, run_no, g.queue, g.priority, g.epoch, g.tries, g.rescues from gone g
        ),
        freed as (
            update shoal.lane l set taken = l.taken - n.n, unstarted = l.unstarted - n.n, waiting = l.waiting + n.n
            from (select g.lane, count(*)::int as n from gone g group by g.lane) n
            where l.id = n.lane
        )
        insert into shoal.count_delta (at, queue, waiting, ready, delayed)
        select t, g.queue, count(*), -count(*) filter (where g.was_ready), -count(*) filter (where not g.was_ready)
        from gone g group by g.queue;
        perform shoal.admit(shared, t);
    end if;
    return array[table_no, at_queue, priorities[cardinality(items)], items[cardinality(items)]];
end $$;

-- Admit items of a run from its next lanes. Returns the cursor; null: all lanes were read.
create or replace function shoal.readmit_from_lanes(run_no int, place bigint[], most int) returns bigint[]
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    looked_at bigint[];
    lanes bigint[];
    enough bigint;
begin
    looked_at := array(select l.id from shoal.lane l where l.id > coalesce(place[1], 0) order by l.id limit most);
    if looked_at = '{}' then
        return null;
    end if;
    -- Only so many lanes as admit about as many items as a step may move, at least one.
    select array_agg(x.id), max(x.id) filter (where x.sum >= most) into lanes, enough
    from (
        select l.id, l.n, sum(l.n) over (order by l.id) as sum
        from (
            select l.id, least(shoal.lane_allowance(l), l.waiting) as n
            from unnest(looked_at) as u(id)
            cross join lateral (select l.* from shoal.lane l where l.id = u.id limit 1) l
            cross join lateral (select from shoal.waiting w where w.lane = l.id and w.run = run_no
                                order by w.priority, w.item limit 1) w
            where shoal.lane_allowance(l) > 0 and l.run in (0, run_no)
        ) l
    ) x where x.sum - x.n < most;
    if lanes is not null then
        perform shoal.lock_lanes(lanes);
        perform shoal.admit(lanes, shoal.clock());
        perform shoal.wake();
    end if;
    return array[coalesce(enough, looked_at[cardinality(looked_at)])];
end $$;

-- Runs whose idle flag is wrong. A run is idle when there are workers and none of them claims its items.
create or replace function shoal.idle_changes() returns table (run_no int, now_idle boolean)
language sql stable as $$
    with live as materialized (select w.scope from shoal.worker w where w.state = 'live'),
    classified as (
        select r.no, r.idle, exists (select 1 from live) and not exists (
            select 1 from live v
            where coalesce(v.scope ->> 'scraper', r.scraper) = r.scraper
              and (json_array_length(v.scope -> 'run_ids') = 0
                   or r.id in (select json_array_elements_text(v.scope -> 'run_ids')))) as now_idle
        from shoal.run r where r.state = 'active'
    )
    select j.no, j.now_idle from classified j where j.idle <> j.now_idle
$$;

-- Under the run's lock, so that every later transaction sees the flag.
create or replace function shoal.set_idle(run_number int, wanted boolean) returns void
language plpgsql as $$
begin
    perform shoal.lock_run(run_number);
    update shoal.run r
    set idle = wanted, lane_work = case when wanted then 'release' else 'readmit' end, lane_work_cursor = null
    where r.no = run_number and r.idle <> wanted and r.state = 'active';
end $$;

-- Fold count deltas into totals, counts per minute and the history of runs.
create or replace function shoal.fold_counts(most int) returns int
language plpgsql as $$
declare
    n int;
begin
    with d as (
        delete from shoal.count_delta d
        where d.id = any (array(select x.id from shoal.count_delta x order by x.id limit most for update skip locked))
        returning d.*
    ),
    per_queue as materialized (
        select d.queue, sum(d.ready) as ready, sum(d.waiting) as waiting, sum(d.delayed) as delayed,
               sum(d.leased) as leased, sum(d.done) as done, sum(d.dead) as dead, sum(d.skipped) as skipped,
               sum(d.cancelled) as cancelled, sum(d.results) as results, sum(d.duplicates) as duplicates,
               max(d.at) filter (where d.worker is not null) as moved_at,
               sum(d.new_records) as new_records, sum(d.changed_records) as changed_records,
               sum(d.unchanged_records) as unchanged_records, sum(d.dropped_records) as dropped_records
        from d group by d.queue order by d.queue
    ),
    totals as (
        insert into shoal.queue_count as c
        select p.queue, p.ready, p.waiting, p.delayed, p.leased, p.done, p.dead, p.skipped, p.cancelled, p.results,
               p.duplicates, p.moved_at, p.new_records, p.changed_records, p.unchanged_records, p.dropped_records
        from per_queue p
        on conflict (queue) do update
        set ready = c.ready + excluded.ready, waiting = c.waiting + excluded.waiting,
            delayed = c.delayed + excluded.delayed, leased = c.leased + excluded.leased,
            done = c.done + excluded.done, dead = c.dead + excluded.dead,
            skipped = c.skipped + excluded.skipped, cancelled = c.cancelled + excluded.cancelled,
            results = c.results + excluded.results,
            duplicates = c.duplicates + excluded.duplicates, moved_at = greatest(c.moved_at, excluded.moved_at),
            new_records = c.new_records + excluded.new_records,
            changed_records = c.changed_records + excluded.changed_records,
            unchanged_records = c.unchanged_records + excluded.unchanged_records,
            dropped_records = c.dropped_records + excluded.dropped_records
    ),
    minutes as (
        insert into shoal.minute_count as m
        select date_trunc('minute', d.at), d.queue, d.worker, sum(d.done), sum(d.dead), sum(d.skipped),
               sum(d.retried), sum(d.throttled), sum(d.results), sum(d.seconds)
        from d where d.worker is not null
        group by 1, 2, 3 order by 1, 2, 3
        on conflict (minute, queue, worker) do update
        set done = m.done + excluded.done, dead = m.dead + excluded.dead, skipped = m.skipped + excluded.skipped,
            retried = m.retried + excluded.retried, throttled = m.throttled + excluded.throttled, results = m.results + excluded.results,
            seconds = m.seconds + excluded.seconds
    ),
    histograms as (
        select x.run, x.at, shoal.buckets(array_agg(x.wait), array_agg(x.n)) as waits,
               shoal.buckets(array_agg(x.work), array_agg(x.n)) as works
        from (
            select k.run, date_trunc('minute', d.at) as at, c.code / 64 as wait, c.code % 64 as work, count(*)::int as n
            from d cross join lateral unnest(d.latencies) as c(code) join shoal.queue k on k.id = d.queue
            where c.code is not null
            group by 1, 2, 3, 4
        ) x
        group by x.run, x.at
    ),
    activity as (
        insert into shoal.run_activity as a
            (run, step, at, done, dead, skipped, retried, throttled, results, seconds, waits, works)
        select f.run, 60, f.at, f.done, f.dead, f.skipped, f.retried, f.throttled, f.results, f.seconds,
               coalesce(h.waits, '{}'), coalesce(h.works, '{}')
        from (
            select k.run, date_trunc('minute', d.at) as at, sum(d.done) as done, sum(d.dead) as dead,
                   sum(d.skipped) as skipped, sum(d.retried) as retried, sum(d.throttled) as throttled,
                   sum(d.results) as results, sum(d.seconds) as seconds
            from d join shoal.queue k on k.id = d.queue where d.worker is not null
            group by 1, 2
        ) f
        left join histograms h on h.run = f.run and h.at = f.at
        order by f.run, f.at
        on conflict (run, step, at) do update
        set done = a.done + excluded.done, dead = a.dead + excluded.dead, skipped = a.skipped + excluded.skipped,
            retried = a.retried + excluded.retried, throttled = a.throttled + excluded.throttled,
            results = a.results + excluded.results, seconds = a.seconds + excluded.seconds,
            waits = shoal.add_buckets(a.waits, excluded.waits), works = shoal.add_buckets(a.works, excluded.works)
    )
    select count(*) into n from d;
    return n;
end $$;

-- Finish runs that are sealed and have no open items. Returns their ids.
create or replace function shoal.finish_runs() returns text[]
language plpgsql as $$
declare
    candidate record;
    finished text[] := '{}';
begin
    for candidate in
        select r.no, r.id from shoal.run r
        left join shoal.remaining_items m on m.run = r.no
        where r.state = 'active' and r.sealed and coalesce(m.items, 0) = 0
        order by r.no limit 100
    loop
        -- Something of it is moving: then it is finished in a later round.
        if not pg_catalog.pg_try_advisory_xact_lock(21320, candidate.no) then
            continue;
        end if;
        -- Checked again now that nothing of the run moves.
        update shoal.run r set state = 'finished', finished_at = shoal.clock(), changed_at = shoal.clock()
        where r.no = candidate.no and r.state = 'active' and r.sealed
          and coalesce((select m.items from shoal.remaining_items m where m.run = r.no), 0) = 0;
        if found then
            finished := finished || candidate.id;
            insert into shoal.event (at, run, actor, action, subject, detail)
            values (shoal.clock(), candidate.no, 'ledger', 'run.finished', candidate.id, '{}');
        end if;
    end loop;
    return finished;
end $$;

-- Open items per run that is cancelled, or active and sealed, from the counts alone.
create or replace view shoal.remaining_items as
select k.run, sum(coalesce(c.ready + c.waiting + c.delayed + c.leased, 0) + coalesce(d.items, 0)) as items
from shoal.run r
join shoal.queue k on k.run = r.no
left join shoal.queue_count c on c.queue = k.id
left join (select x.queue, sum(x.ready + x.waiting + x.delayed + x.leased) as items
           from shoal.count_delta x group by x.queue) d on d.queue = k.id
where r.state = 'cancelled' or (r.state = 'active' and r.sealed)
group by k.run;

-- One step of deleting a removed run without open items, along the primary keys from where the last step ended, because
-- deleted rows are read again while another session holds an old snapshot. `place`: the cursor; null to begin, null
-- when the run is deleted.
create or replace function shoal.purge(run_no int, most int, inout place bigint[])
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    table_no int := coalesce(place[1], 1);
    at_item bigint := coalesce(place[2], 0);
    rows tid[];
    last_item bigint;
begin
    -- One process at a time: two would wait for each other's rows and both find nothing left.
    perform shoal.lock_run(run_no);
    if not exists (select 1 from shoal.run r where r.no = run_no and r.state = 'removed') then
        place := null;
        return;
    end if;
    while table_no <= 6 loop
        case table_no
        when 1 then
            -- An item has any number of records: the next step starts with the last item again.
            select array_agg(x.ctid), max(x.item) - 1 into rows, last_item
            from (select y.ctid, y.item from shoal.result y
                  where (y.run, y.item) > (run_no, at_item) and (y.run, y.item) < (run_no + 1, 0)
                  order by y.run, y.item, y.n limit most) x;
            delete from shoal.result y where y.ctid = any (rows);
        when 2 then
            select array_agg(x.ctid), max(x.item) - 1 into rows, last_item
            from (select y.ctid, y.item from shoal.attempt y
                  where (y.run, y.item) > (run_no, at_item) and (y.run, y.item) < (run_no + 1, 0)
                  order by y.run, y.item, y.epoch limit most) x;
            delete from shoal.attempt y where y.ctid = any (rows);
        when 3 then
            select array_agg(x.ctid), max(x.item) into rows, last_item
            from (select y.ctid, y.item from shoal.outcome y
                  where (y.run, y.item) > (run_no, at_item) and (y.run, y.item) < (run_no + 1, 0)
                  order by y.run, y.item limit most) x;
            delete from shoal.outcome y where y.ctid = any (rows);
        when 4 then
            select array_agg(x.ctid), max(x.id) into rows, last_item
            from (select y.ctid, y.id from shoal.item y
                  where (y.run, y.id) > (run_no, at_item) and (y.run, y.id) < (run_no + 1, 0)
                  order by y.run, y.id limit most) x;
            delete from shoal.item y where y.ctid = any (rows);
        when 5 then
            select array_agg(x.ctid), max(x.id) into rows, last_item
            from (select y.ctid, y.id from shoal.result_change y
                  where (y.run, y.id) > (run_no, at_item) and (y.run, y.id) < (run_no + 1, 0)
                  order by y.run, y.id limit most) x;
            delete from shoal.result_change y where y.ctid = any (rows);
        else
            select array_agg(x.ctid), 0 into rows, last_item
            from (select y.ctid from shoal.lane y where (y.run, y.key) >= (run_no, '') and (y.run, y.key) < (run_no + 1, '')
                  order by y.run, y.key limit most) x;
            delete from shoal.lane y where y.ctid = any (rows);
        end case;
        if rows is not null then
            place := array[table_no, last_item];
            return;
        end if;
        table_no := table_no + 1;
        at_item := 0;
    end loop;
    if exists (select 1 from shoal.item y where (y.run, y.id) > (run_no, 0) and (y.run, y.id) < (run_no + 1, 0)) then
        place := array[1, 0];
        return;
    end if;
    delete from shoal.count_delta d where d.queue in (select k.id from shoal.queue k where k.run = run_no);
    delete from shoal.queue_count c where c.queue in (select k.id from shoal.queue k where k.run = run_no);
    delete from shoal.minute_count m where m.queue in (select k.id from shoal.queue k where k.run = run_no);
    delete from shoal.failure_minute m where m.failure in (select g.id from shoal.failure_group g where g.run = run_no);
    delete from shoal.failure_group g where g.run = run_no;
    delete from shoal.slow_lane l where l.run = run_no;
    delete from shoal.run_activity a where a.run = run_no;
    delete from shoal.author_count c where c.run = run_no;
    delete from shoal.run_state s where s.run = run_no;
    delete from shoal.dead_letter x where x.run = run_no;
    delete from shoal.queue k where k.run = run_no;
    delete from shoal.stage s where s.run = run_no;
    delete from shoal.run_note n where n.run = run_no;
    delete from shoal.run r where r.no = run_no and r.state = 'removed';
    place := null;
end $$;

-- Create a run. Its id is the ledger's time, with a suffix when that id exists. With the same receipt again, or with an
-- idempotency key that has a run, returns the existing run.
create or replace function shoal.create_run(
    receipt_id uuid, scraper text, settings json, wanted_key text, code_version text, key_version int,
    max_attempts int, max_rescues int, stage_names text[], stage_attempts int[], lane_limits int[],
    lane_delay_mins real[], lane_delay_maxs real[], lane_ordered boolean[], lane_shared boolean[],
    lane_loopback_limits int[]) returns text
language plpgsql as $$
declare
    t timestamptz := shoal.clock();
    plain text := to_char(t at time zone 'UTC', 'YYYYMMDD_HH24MISS');
    chosen text;
    tried int := 0;
    run_no int;
begin
    select r.answer ->> 'run_id' into chosen from shoal.receipt r where r.id = receipt_id;
    if found then
        return chosen;
    end if;
    if wanted_key is not null then
        perform pg_advisory_xact_lock(hashtextextended('shoal.idempotency_key ' || wanted_key, 0));
        select r.id into chosen from shoal.run r where r.idempotency_key = wanted_key and r.state <> 'removed';
        if found then
            return chosen;
        end if;
    end if;
    loop
        tried := tried + 1;
        chosen := plain || case when tried > 1 then '_' || tried else '' end;
        insert into shoal.run (id, scraper, settings, code_version, key_version, max_attempts, max_rescues,
                               created_at, changed_at, idempotency_key)
        values (chosen, scraper, settings, code_version, key_version, max_attempts, max_rescues, t, t, wanted_key)
        on conflict (id) do nothing
        returning no into run_no;
        exit when run_no is not null;
    end loop;
    insert into shoal.stage (run, name, max_attempts, lane_limit, lane_delay_min, lane_delay_max, lane_ordered,
                             lane_shared, lane_loopback_limit)
    select run_no, u.* from unnest(stage_names, stage_attempts, lane_limits, lane_delay_mins, lane_delay_maxs,
                                   lane_ordered, lane_shared, lane_loopback_limits) as u;
    insert into shoal.receipt (id, at, answer) values (receipt_id, t, json_build_object('run_id', chosen));
    insert into shoal.event (at, run, actor, action, subject, detail)
    values (t, run_no, '', 'run.created', chosen, json_build_object('scraper', scraper));
    return chosen;
end $$;

-- Change a run's state if it is one of `allowed`; returns the state it had. because: for the event. Under the run's lock, so that every later
-- transaction sees the new state.
create or replace function shoal.set_run_state(run_no int, wanted text, allowed text[], actor text, because text)
returns text
language plpgsql as $$
declare
    t timestamptz := shoal.clock();
    was text;
begin
    perform shoal.lock_run(run_no);
    select r.state into was from shoal.run r where r.no = run_no for update;
    if was = any (allowed) then
        update shoal.run r
        set lane_work = case wanted when 'paused' then 'release' when 'active' then 'readmit' end, lane_work_cursor = null
        where r.no = run_no;
    end if;
    if was = any (allowed) and was <> wanted then
        update shoal.run r
        set state = wanted, changed_at = t,
            -- A run that had ended accepts items again, until it is sealed again.
            sealed = r.sealed and not (wanted = 'active' and was in ('finished', 'cancelled')),
            finished_at = case when wanted in ('finished', 'cancelled') then t end
        where r.no = run_no;
        insert into shoal.event (at, run, actor, action, subject, detail)
        select t, run_no, actor, 'run.' || wanted, r.id,
               json_strip_nulls(json_build_object('from', was, 'because', nullif(because, '')))
        from shoal.run r where r.no = run_no;
        perform shoal.wake();
    end if;
    return was;
end $$;

-- When the run is the only one, its tables are truncated instead of deleting row by row.
create or replace function shoal.truncate_if_only_run(run_no int) returns boolean
language plpgsql as $$
begin
    perform set_config('lock_timeout', '2s', true);
    lock table shoal.run in exclusive mode;
    if exists (select 1 from shoal.run r where r.no <> run_no) then
        return false;
    end if;
    truncate shoal.item, shoal.ready, shoal.waiting, shoal.delayed, shoal.lease, shoal.outcome, shoal.attempt,
             shoal.result, shoal.result_change, shoal.count_delta, shoal.queue_count, shoal.minute_count,
             shoal.failure_group, shoal.failure_minute, shoal.slow_lane, shoal.run_activity, shoal.author_count,
             shoal.run_state;
    update shoal.lane l set taken = 0, unstarted = 0, waiting = 0 where l.taken <> 0 or l.waiting <> 0;
    return true;
exception when lock_not_available or insufficient_privilege then
    return false;
end $$;
