-- Cancel these items of a run, wherever they stand. The run is owned, so nothing moves meanwhile except promotions out
-- of `waiting`, and those are held off by the lanes' locks.
create or replace function shoal.cancel_items(run_no int, items bigint[], reason text) returns int
language plpgsql as $$
declare
    t timestamptz;
    lanes bigint[];
    n int;
begin
    perform shoal.own_run(run_no);
    select array_agg(distinct i.lane) into lanes
    from shoal.item i where i.run = run_no and i.id = any (items) and i.lane is not null;
    perform shoal.lock_lanes(lanes);
    t := shoal.clock();
    with facts as materialized (
        select i.id, i.queue, i.priority, i.lane from shoal.item i where i.run = run_no and i.id = any (items)
    ),
    from_ready as (
        delete from shoal.ready r using facts f
        where r.queue = f.queue and r.priority = f.priority and r.item = f.id
        returning r.item, r.lane, r.queue, r.epoch, r.tries, r.rescues
    ),
    from_waiting as (
        delete from shoal.waiting w using facts f
        where w.lane = f.lane and w.run = run_no and w.priority = f.priority and w.item = f.id
        returning w.item, w.lane, w.queue, w.epoch, w.tries, w.rescues
    ),
    from_delayed as (
        delete from shoal.delayed d using facts f where d.item = f.id
        returning d.item, d.lane, d.queue, d.epoch, d.tries, d.rescues, d.slotted
    ),
    from_lease as (
        delete from shoal.lease s using facts f where s.item = f.id
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
        from gone g
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
        select t, g.queue, count(*), -count(*) filter (where g.place = 'ready'),
               -count(*) filter (where g.place = 'waiting'), -count(*) filter (where g.place = 'delayed'),
               -count(*) filter (where g.place = 'leased')
        from gone g group by g.queue
    )
    select count(*) into n from gone g;
    perform shoal.admit(lanes, t);
    return n;
end $$;

-- Give dead or cancelled items another life: their end becomes an ordinary attempt, tries and rescues start anew, the
-- epoch goes on. A finished or cancelled run is active again.
create or replace function shoal.retry_items(run_no int, items bigint[]) returns int
language plpgsql as $$
declare
    t timestamptz;
    lanes bigint[];
    n int;
begin
    perform shoal.own_run(run_no);
    if not exists (select 1 from shoal.run r where r.no = run_no and r.state <> 'removed') then
        return 0;
    end if;
    select array_agg(distinct i.lane) into lanes
    from shoal.item i where i.run = run_no and i.id = any (items) and i.lane is not null;
    perform shoal.lock_lanes(lanes);
    t := shoal.clock();
    with revived as (
        delete from shoal.outcome o
        where o.run = run_no and o.item = any (items) and o.state in ('dead', 'cancelled')
        returning o.*
    ),
    placed as materialized (
        select v.*, i.lane, i.priority from revived v join shoal.item i on i.run = run_no and i.id = v.item
    ),
    history as (
        -- An item cancelled before anybody claimed it has no attempt to keep.
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
        insert into shoal.count_delta (at, queue, dead, cancelled, ready, waiting)
        select t, p.queue, -count(*) filter (where p.state = 'dead'), -count(*) filter (where p.state = 'cancelled'),
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

-- End some of a cancelled run's open items; 0 means that none is left. In steps, so that no lock is held for long:
-- nothing of a cancelled run is claimed or let out meanwhile.
create or replace function shoal.cancel_open_items(run_no int, reason text, most int) returns int
language plpgsql as $$
begin
    perform shoal.own_run(run_no);
    if not exists (select 1 from shoal.run r where r.no = run_no and r.state = 'cancelled') then
        return 0;
    end if;
    return shoal.cancel_items(run_no, array(
        select x.item from (
            (select r.item from shoal.queue k join shoal.ready r on r.queue = k.id where k.run = run_no limit most)
            union all (select w.item from shoal.waiting w where w.run = run_no limit most)
            union all (select d.item from shoal.delayed d where d.run = run_no limit most)
            union all (select s.item from shoal.lease s where s.run = run_no limit most)) x
        limit most), reason);
end $$;

-- Drop whatever is open of a removed run. Nobody will ask what became of it, so nothing is written down.
create or replace function shoal.drop_open_items(run_no int) returns void
language plpgsql as $$
declare
    lanes bigint[];
begin
    perform shoal.own_run(run_no);
    lanes := array(
        select r.lane from shoal.ready r join shoal.queue k on k.id = r.queue
        where k.run = run_no and r.lane is not null
        union select w.lane from shoal.waiting w where w.run = run_no
        union select d.lane from shoal.delayed d where d.run = run_no and d.lane is not null
        union select s.lane from shoal.lease s where s.run = run_no and s.lane is not null);
    perform shoal.lock_lanes(lanes);
    with from_ready as (
        delete from shoal.ready r using shoal.queue k where k.run = run_no and r.queue = k.id returning r.lane
    ),
    from_waiting as (delete from shoal.waiting w where w.run = run_no returning w.lane),
    from_delayed as (delete from shoal.delayed d where d.run = run_no returning d.lane, d.slotted),
    from_lease as (delete from shoal.lease s where s.run = run_no returning s.lane, s.started_at),
    gone as (
        select lane, 1 as taken, 1 as unstarted, 0 as waiting from from_ready
        union all select lane, 0, 0, 1 from from_waiting
        union all select lane, slotted::int, slotted::int, 0 from from_delayed
        union all select lane, 1, (started_at is null)::int, 0 from from_lease
    )
    update shoal.lane l
    set taken = l.taken - n.taken, unstarted = l.unstarted - n.unstarted, waiting = l.waiting - n.waiting
    from (select g.lane, sum(g.taken)::int as taken, sum(g.unstarted)::int as unstarted, sum(g.waiting)::int as waiting
          from gone g where g.lane is not null group by g.lane) n
    where l.id = n.lane;
    perform shoal.admit(lanes, shoal.clock());
end $$;

-- A paused or idle run must not sit on places in lanes that other runs share: put what it has let out back in line.
create or replace function shoal.yield_lanes(run_no int) returns int
language plpgsql as $$
declare
    t timestamptz;
    lanes bigint[];
    n int;
begin
    lanes := array(
        select l.id from shoal.ready r join shoal.queue k on k.id = r.queue join shoal.lane l on l.id = r.lane
        where k.run = run_no and l.run = 0
        union
        select l.id from shoal.delayed d join shoal.lane l on l.id = d.lane
        where d.run = run_no and d.slotted and l.run = 0);
    if lanes = '{}' then
        return 0;
    end if;
    perform shoal.lock_lanes(lanes);
    t := shoal.clock();
    -- Resumed meanwhile? Then there is nothing to give up.
    if not exists (select 1 from shoal.run r where r.no = run_no and (r.state = 'paused' or r.idle)) then
        return 0;
    end if;
    with from_ready as (
        delete from shoal.ready r using shoal.queue k
        where k.run = run_no and r.queue = k.id and r.lane = any (lanes)
        returning r.item, r.lane, r.queue, r.priority, r.epoch, r.tries, r.rescues
    ),
    from_delayed as (
        delete from shoal.delayed d
        where d.run = run_no and d.slotted and d.lane = any (lanes)
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
    ),
    delta as (
        insert into shoal.count_delta (at, queue, waiting, ready, delayed)
        select t, g.queue, count(*), -count(*) filter (where g.was_ready), -count(*) filter (where not g.was_ready)
        from gone g group by g.queue
    )
    select count(*) into n from gone;
    perform shoal.admit(lanes, t);
    return n;
end $$;

-- Lanes that could let somebody out but were not asked: after a resume, a raised limit, a lock that was missed.
-- Given a run, only those that it waits for.
create or replace function shoal.sweep_lanes(most int, only_run int) returns int
language plpgsql as $$
declare
    lanes bigint[];
begin
    if only_run is not null then
        lanes := array(
            select l.id from shoal.lane l
            cross join lateral (select from shoal.waiting w where w.lane = l.id and w.run = only_run
                                order by w.priority, w.item limit 1) w
            where shoal.lane_allowance(l) > 0
            limit most);
    else
        lanes := array(
            select l.id from shoal.lane l
            where shoal.lane_allowance(l) > 0
              and exists (
                  -- From run to run that waits here, along the index.
                  with recursive x(run) as (
                      (select w.run from shoal.waiting w where w.lane = l.id order by w.run limit 1)
                      union all
                      select (select w.run from shoal.waiting w where w.lane = l.id and w.run > x.run
                              order by w.run limit 1)
                      from x where x.run is not null)
                  select 1 from x join shoal.run r on r.no = x.run and r.state = 'active' and not r.idle)
            limit most);
    end if;
    if lanes = '{}' then
        return 0;
    end if;
    perform shoal.lock_lanes(lanes);
    return shoal.admit(lanes, shoal.clock());
end $$;

-- Runs that became idle, or are no longer: there are workers, and none of them takes this run's items.
create or replace function shoal.idle_changes() returns table (run_no int, now_idle boolean)
language sql stable as $$
    with live as materialized (select w.scope from shoal.worker w where w.state = 'live'),
    judged as (
        select r.no, r.idle, exists (select 1 from live) and not exists (
            select 1 from live v
            where coalesce(v.scope ->> 'scraper', r.scraper) = r.scraper
              and (json_array_length(v.scope -> 'run_ids') = 0
                   or r.id in (select json_array_elements_text(v.scope -> 'run_ids')))) as now_idle
        from shoal.run r where r.state = 'active'
    )
    select j.no, j.now_idle from judged j where j.idle <> j.now_idle
    union all
    -- What was let out just before it became idle, or came back from a worker that died.
    select j.no, true from judged j
    where j.idle and j.now_idle
      and exists (select 1 from shoal.queue k join shoal.ready y on y.queue = k.id
                  where k.run = j.no and y.lane is not null)
$$;

create or replace function shoal.set_idle(run_number int, wanted boolean) returns void
language plpgsql as $$
begin
    update shoal.run r set idle = wanted where r.no = run_number and r.idle <> wanted;
    if wanted then
        perform shoal.yield_lanes(run_number);
    else
        while shoal.sweep_lanes(1000, run_number) > 0 loop
        end loop;
    end if;
end $$;

-- Fold count deltas into totals and per-minute figures.
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
               sum(d.leased) as leased, sum(d.done) as done, sum(d.dead) as dead, sum(d.cancelled) as cancelled,
               sum(d.results) as results, sum(d.duplicates) as duplicates,
               max(d.at) filter (where d.worker is not null) as moved_at
        from d group by d.queue order by d.queue
    ),
    totals as (
        insert into shoal.queue_count as c
        select p.queue, p.ready, p.waiting, p.delayed, p.leased, p.done, p.dead, p.cancelled, p.results, p.duplicates,
               p.moved_at
        from per_queue p
        on conflict (queue) do update
        set ready = c.ready + excluded.ready, waiting = c.waiting + excluded.waiting,
            delayed = c.delayed + excluded.delayed, leased = c.leased + excluded.leased,
            done = c.done + excluded.done, dead = c.dead + excluded.dead,
            cancelled = c.cancelled + excluded.cancelled, results = c.results + excluded.results,
            duplicates = c.duplicates + excluded.duplicates, moved_at = greatest(c.moved_at, excluded.moved_at)
    ),
    minutes as (
        insert into shoal.minute_count as m
        select date_trunc('minute', d.at), d.queue, d.worker, sum(d.done), sum(d.dead), sum(d.retried),
               sum(d.throttled), sum(d.results), sum(d.seconds)
        from d where d.worker is not null
        group by 1, 2, 3 order by 1, 2, 3
        on conflict (minute, queue, worker) do update
        set done = m.done + excluded.done, dead = m.dead + excluded.dead, retried = m.retried + excluded.retried,
            throttled = m.throttled + excluded.throttled, results = m.results + excluded.results,
            seconds = m.seconds + excluded.seconds
    )
    select count(*) into n from d;
    return n;
end $$;

-- Runs that are sealed and have nothing left are finished. Returns their ids.
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
        -- Something of it moves at this moment: then it is finished in a later round.
        if not pg_catalog.pg_try_advisory_xact_lock(21320, candidate.no) then
            continue;
        end if;
        -- Asked again now that nothing of the run moves.
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

-- Items that are not ended, per run that has not ended well, from the counts alone. The deltas are summed up once.
create or replace view shoal.remaining_items as
select k.run, sum(coalesce(c.ready + c.waiting + c.delayed + c.leased, 0) + coalesce(d.items, 0)) as items
from shoal.run r
join shoal.queue k on k.run = r.no
left join shoal.queue_count c on c.queue = k.id
left join (select x.queue, sum(x.ready + x.waiting + x.delayed + x.leased) as items
           from shoal.count_delta x group by x.queue) d on d.queue = k.id
where r.state = 'cancelled' or (r.state = 'active' and r.sealed)
group by k.run;

-- Delete some rows of a removed run; 0 means that it is gone.
create or replace function shoal.purge(run_no int, most int) returns bigint
language plpgsql as $$
declare
    n bigint := 0;
    part bigint;
begin
    -- One at a time: two would wait for each other's rows and each think that nothing was left.
    perform shoal.own_run(run_no);
    delete from shoal.result x where x.ctid = any (array(
        select y.ctid from shoal.result y where y.run = run_no limit most));
    get diagnostics part = row_count;
    n := n + part;
    delete from shoal.attempt x where x.ctid = any (array(
        select y.ctid from shoal.attempt y where y.run = run_no limit most));
    get diagnostics part = row_count;
    n := n + part;
    delete from shoal.outcome x where x.ctid = any (array(
        select y.ctid from shoal.outcome y where y.run = run_no limit most));
    get diagnostics part = row_count;
    n := n + part;
    delete from shoal.item x where x.ctid = any (array(
        select y.ctid from shoal.item y where y.run = run_no limit most));
    get diagnostics part = row_count;
    n := n + part;
    if n > 0 then
        return n;
    end if;
    delete from shoal.count_delta d using shoal.queue k where k.run = run_no and d.queue = k.id;
    delete from shoal.queue_count c using shoal.queue k where k.run = run_no and c.queue = k.id;
    delete from shoal.minute_count m using shoal.queue k where k.run = run_no and m.queue = k.id;
    delete from shoal.lane l where l.run = run_no;
    delete from shoal.queue k where k.run = run_no;
    delete from shoal.stage s where s.run = run_no;
    delete from shoal.run_note n where n.run = run_no;
    delete from shoal.run r where r.no = run_no and r.state = 'removed';
    return 0;
end $$;

-- A new run. Its id is the ledger's time; a suffix is added when the plain id is taken. Asked again with the same
-- receipt, or for an occasion that has a run, it answers with the run that was made the first time.
create or replace function shoal.create_run(
    receipt_id uuid, scraper text, settings json, occasion_name text, code_version text, key_version int,
    max_attempts int, max_rescues int, stage_names text[], stage_attempts int[], lane_limits int[],
    lane_delay_mins real[], lane_delay_maxs real[], lane_ordered boolean[], lane_shared boolean[]) returns text
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
    if occasion_name is not null then
        perform pg_advisory_xact_lock(hashtextextended('shoal.occasion ' || occasion_name, 0));
        select r.id into chosen from shoal.run r where r.occasion = occasion_name and r.state <> 'removed';
        if found then
            return chosen;
        end if;
    end if;
    loop
        tried := tried + 1;
        chosen := plain || case when tried > 1 then '_' || tried else '' end;
        insert into shoal.run (id, scraper, settings, code_version, key_version, max_attempts, max_rescues,
                               created_at, changed_at, occasion)
        values (chosen, scraper, settings, code_version, key_version, max_attempts, max_rescues, t, t, occasion_name)
        on conflict (id) do nothing
        returning no into run_no;
        exit when run_no is not null;
    end loop;
    insert into shoal.stage (run, name, max_attempts, lane_limit, lane_delay_min, lane_delay_max, lane_ordered,
                             lane_shared)
    select run_no, u.* from unnest(stage_names, stage_attempts, lane_limits, lane_delay_mins, lane_delay_maxs,
                                   lane_ordered, lane_shared) as u;
    insert into shoal.receipt (id, at, answer) values (receipt_id, t, json_build_object('run_id', chosen));
    insert into shoal.event (at, run, actor, action, subject, detail)
    values (t, run_no, '', 'run.created', chosen, json_build_object('scraper', scraper));
    return chosen;
end $$;

-- Change a run's state when it is in one of the states given; returns the state it had. Nothing of the run is moving
-- at that moment, and whatever moves later sees the new state.
create or replace function shoal.set_run_state(run_no int, wanted text, allowed text[], actor text) returns text
language plpgsql as $$
declare
    t timestamptz := shoal.clock();
    was text;
begin
    perform shoal.own_run(run_no);
    select r.state into was from shoal.run r where r.no = run_no for update;
    if was = any (allowed) and was <> wanted then
        update shoal.run r
        set state = wanted, changed_at = t,
            -- A run that had ended takes items again, until it is sealed again.
            sealed = r.sealed and not (wanted = 'active' and was in ('finished', 'cancelled')),
            finished_at = case when wanted in ('finished', 'cancelled') then t end
        where r.no = run_no;
        insert into shoal.event (at, run, actor, action, subject, detail)
        select t, run_no, actor, 'run.' || wanted, r.id, json_build_object('from', was)
        from shoal.run r where r.no = run_no;
        perform shoal.wake();
    end if;
    return was;
end $$;

-- When the run is the only one, its tables are emptied at once instead of row by row.
create or replace function shoal.truncate_if_alone(run_no int) returns boolean
language plpgsql as $$
begin
    perform set_config('lock_timeout', '2s', true);
    lock table shoal.run in exclusive mode;
    if exists (select 1 from shoal.run r where r.no <> run_no) then
        return false;
    end if;
    truncate shoal.item, shoal.ready, shoal.waiting, shoal.delayed, shoal.lease, shoal.outcome, shoal.attempt,
             shoal.result, shoal.count_delta, shoal.queue_count, shoal.minute_count;
    update shoal.lane l set taken = 0, unstarted = 0, waiting = 0 where l.taken <> 0 or l.waiting <> 0;
    return true;
exception when lock_not_available or insufficient_privilege then
    return false;
end $$;
