-- End leases. how = 'returned': the worker returns items, nothing is charged or recorded; 'released': by an operator,
-- recorded; 'crashed': the worker died, recorded and counted as a rescue.
--
-- The first crash counts for every lease of the worker (rescues = 1), because it is unknown which item caused it; later
-- ones count only for items reported as started, so an item that was only buffered beside a poison item is not
-- quarantined. Beyond the run's max_rescues an item is quarantined: dead, outcome 'poison'.
create or replace function shoal.unlease(
    items bigint[], epochs int[], how text, reason text, out back int, out quarantined int)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    t timestamptz;
    lanes bigint[];
begin
    perform shoal.lock_runs_shared(array(select s.run from shoal.lease s where s.item = any (items)));
    select array_agg(distinct s.lane) into lanes
    from shoal.lease s where s.item = any (items) and s.lane is not null;
    perform shoal.lock_lanes(lanes);
    t := shoal.clock();

    with gone as (
        delete from shoal.lease s using unnest(items, epochs) as u(item, epoch)
        where s.item = u.item and s.epoch = u.epoch
        returning s.*
    ),
    classified as materialized (
        select g.*, r.rescues_now,
               how = 'crashed' and r.rescues_now > n.max_rescues as poison,
               l.delay_max, l.next_at, coalesce(l.ordered, false) as ordered,
               -- Certainly not started, so it keeps its slot and returns to ready; but a paused or idle run keeps no
               -- slot in a shared lane.
               g.lane is null or (g.started_at is null and (how = 'returned' or l.delay_max = 0)
                                  and (l.run <> 0 or (n.state = 'active' and not n.idle))) as straight
        from gone g
        join shoal.run n on n.no = g.run
        left join shoal.lane l on l.id = g.lane
        cross join lateral (
            select case when how <> 'crashed' then g.rescues
                        when g.rescues = 0 or g.started_at is not null then g.rescues + 1
                        else g.rescues end::smallint as rescues_now
        ) r
    ),
    recorded as (
        insert into shoal.attempt (item, claimed_at, ended_at, run, epoch, worker, seconds, outcome, error)
        select j.item, j.claimed_at, t, j.run, j.epoch, j.worker,
               greatest(0, extract(epoch from t - coalesce(j.started_at, j.claimed_at))), how, reason
        from classified j where how <> 'returned' and not j.poison
    ),
    quarantined_items as (
        insert into shoal.outcome (item, claimed_at, ended_at, run, queue, epoch, worker, seconds, tries, rescues,
                                   state, outcome, error)
        select j.item, j.claimed_at, t, j.run, j.queue, j.epoch, j.worker, 0, j.tries, j.rescues_now, 'dead', 'poison',
               'Quarantined: ' || j.rescues_now || ' workers died while they held it. Last: ' || coalesce(reason, '?')
        from classified j where j.poison
    ),
    to_ready as (
        insert into shoal.ready (item, lane, since, queue, priority, epoch, tries, rescues)
        select j.item, j.lane, t, j.queue, j.priority, j.epoch, j.tries, j.rescues_now
        from classified j where not j.poison and j.straight
    ),
    to_delayed as (
        insert into shoal.delayed
            (item, lane, due_at, since, run, queue, priority, epoch, tries, rescues, slotted, reason)
        select j.item, j.lane, greatest(t + shoal.seconds(j.delay_max), j.next_at), t, j.run, j.queue, j.priority,
               j.epoch, j.tries, j.rescues_now, true, 'lane'
        from classified j where not j.poison and not j.straight and j.ordered
    ),
    to_waiting as (
        insert into shoal.waiting (item, lane, since, run, queue, priority, epoch, tries, rescues)
        select j.item, j.lane, t, j.run, j.queue, j.priority, j.epoch, j.tries, j.rescues_now
        from classified j where not j.poison and not j.straight and not j.ordered
    ),
    freed as (
        update shoal.lane l
        set taken = l.taken - n.left_lane,
            unstarted = l.unstarted - n.left_unstarted + n.held_again,
            waiting = l.waiting + n.back,
            -- A worker that died or lost its lease may have started without reporting it: the delay counts from now.
            next_at = case when l.delay_max > 0 and how <> 'returned'
                           then greatest(l.next_at, t + shoal.lane_pause(l)) else l.next_at end
        from (
            select j.lane,
                   count(*) filter (where j.poison or not (j.straight or j.ordered))::int as left_lane,
                   count(*) filter (where (j.poison or not (j.straight or j.ordered)) and j.started_at is null)::int
                       as left_unstarted,
                   count(*) filter (where not j.poison and j.ordered and j.started_at is not null)::int as held_again,
                   count(*) filter (where not j.poison and not (j.straight or j.ordered))::int as back
            from classified j where j.lane is not null group by j.lane
        ) n
        where l.id = n.lane
    ),
    delta as (
        insert into shoal.count_delta (at, queue, worker, leased, dead, ready, delayed, waiting)
        select t, j.queue, j.worker, -count(*), count(*) filter (where j.poison),
               count(*) filter (where not j.poison and j.straight),
               count(*) filter (where not j.poison and not j.straight and j.ordered),
               count(*) filter (where not j.poison and not j.straight and not j.ordered)
        from classified j group by j.queue, j.worker
    )
    select count(*) filter (where not j.poison), count(*) filter (where j.poison) into back, quarantined from classified j;

    perform shoal.admit(lanes, t);
    if back > 0 then
        perform shoal.wake();
    end if;
end $$;

-- Declare workers without a recent heartbeat lost, and `dead_workers`, whose end was observed, at once. Changes only
-- rows of workers and skips locked ones: a worker that is claiming now is alive.
create or replace function shoal.declare_lost(dead_workers int[]) returns text[]
language plpgsql as $$
declare
    t timestamptz := shoal.clock();
    lost text[];
begin
    -- A clock that was set back must not make a dead worker look alive.
    update shoal.worker w set heartbeat_at = t
    where w.state in ('live', 'draining') and w.heartbeat_at > t + shoal.seconds(w.lease_seconds);
    with silent as (
        select w.no from shoal.worker w
        where w.state in ('live', 'draining')
          and (w.no = any (dead_workers) or w.heartbeat_at < t - shoal.seconds(w.lease_seconds))
        for update skip locked
    ),
    lost_workers as (
        update shoal.worker w set state = 'lost', ended_at = t from silent s where w.no = s.no returning w.id
    )
    select array_agg(b.id order by b.id) into lost from lost_workers b;
    return coalesce(lost, '{}');
end $$;

-- End leases of stopped and lost workers, at most `most`, including those that an earlier round left.
create or replace function shoal.rescue(most int, out rescued int, out quarantined int, out more boolean)
language plpgsql
set lock_timeout = '1s'
as $$
declare
    orphans bigint[];
begin
    orphans := array(
        select s.item from shoal.lease s join shoal.worker w on w.no = s.worker
        where w.state in ('stopped', 'lost') order by s.item limit most);
    more := cardinality(orphans) = most;
    -- Runs before lanes, and all lanes in one statement, so that two rounds cannot deadlock.
    perform shoal.lock_runs_shared(array(select s.run from shoal.lease s where s.item = any (orphans)));
    perform shoal.lock_lanes(array(
        select s.lane from shoal.lease s where s.item = any (orphans) and s.lane is not null
        union select v.lane from shoal.host_slot v join shoal.worker w on w.no = v.worker
        where w.state in ('stopped', 'lost')));
    perform shoal.release_slots(array(
        select v.id from shoal.host_slot v join shoal.worker w on w.no = v.worker where w.state in ('stopped', 'lost')));
    select coalesce(sum(u.back), 0), coalesce(sum(u.quarantined), 0) into rescued, quarantined
    from (
        select array_agg(s.item order by s.item) as items, array_agg(s.epoch order by s.item) as epochs,
               'Worker ' || w.id || ' was ' || w.state || '.' as reason
        from shoal.lease s join shoal.worker w on w.no = s.worker
        where s.item = any (orphans) and w.state in ('stopped', 'lost')
        group by w.id, w.state
    ) g
    cross join lateral shoal.unlease(g.items, g.epochs, 'crashed', g.reason) u;
end $$;

-- A worker stops. Its leases are returned at once.
create or replace function shoal.stop_worker(worker_no int) returns int
language plpgsql as $$
declare
    returned int;
begin
    perform shoal.lock_runs_shared(array(select s.run from shoal.lease s where s.worker = worker_no));
    -- Waits for a claim that is running: its items are returned too.
    perform 1 from shoal.worker w where w.no = worker_no for update;
    update shoal.worker w set state = 'stopped', ended_at = shoal.clock()
    where w.no = worker_no and w.state in ('live', 'draining');
    perform shoal.lock_lanes(array(
        select s.lane from shoal.lease s where s.worker = worker_no and s.lane is not null
        union select v.lane from shoal.host_slot v where v.worker = worker_no));
    perform shoal.release_slots(array(select v.id from shoal.host_slot v where v.worker = worker_no));
    select u.back into returned
    from (select array_agg(s.item order by s.item) as items, array_agg(s.epoch order by s.item) as epochs
          from shoal.lease s where s.worker = worker_no) g
    cross join lateral shoal.unlease(g.items, g.epochs, 'returned', null) u;
    return coalesce(returned, 0);
end $$;

-- Return leases that a worker does not know of, from claims whose answer was lost.
create or replace function shoal.reconcile(worker_no int, known_items bigint[], known_epochs int[]) returns int
language plpgsql as $$
declare
    returned int;
begin
    select u.back into returned
    from (select array_agg(s.item order by s.item) as items, array_agg(s.epoch order by s.item) as epochs
          from shoal.lease s
          where s.worker = worker_no and (s.item, s.epoch) not in (
              select k.item, k.epoch from unnest(known_items, known_epochs) as k(item, epoch))) g
    cross join lateral shoal.unlease(g.items, g.epochs, 'returned', null) u;
    return coalesce(returned, 0);
end $$;
