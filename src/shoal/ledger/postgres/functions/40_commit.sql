-- Commit finished attempts in one transaction: leases, results, follow-ups, attempts, outcomes, lanes, counts. Only
-- items whose lease (item, epoch) is still valid change; the others are returned as `repeated` (this same commit was
-- made before) or `lost` (the lease is no longer valid). The call may be repeated.
--
-- kinds: done, dead, skipped, retry (charged), throttled (not charged, its lane is blocked), put_off (not charged, its lane is
-- not blocked, because another host asked to wait), egress (as put_off: no exit could be used). null: all are done without error or detail; this usual case has a
-- shorter path. runs: the runs of the items, each at least once; used to lock them and to tell `repeated` from `lost`.
-- r_hashes: null, or the hash of each record that has a key (45_record_keys.sql). codes: the buckets of each attempt's
-- wait and work (model/latency.py).
create or replace function shoal.commit(
    worker_no int, items bigint[], epochs int[], runs int[], kinds text[], outcomes text[],
    delays double precision[], errors text[], took real[], details json[],
    r_items bigint[], r_ns int[], r_records json[],
    f_parents bigint[], f_queues int[], f_hashes bytea[], f_keys text[], f_urls text[], f_payloads json[],
    f_lane_ix int[], f_priorities int[], f_delays double precision[], f_max_tries int[], f_requests json[],
    f_depths smallint[],
    lane_names text[], lane_stages int[],
    r_keys text[] default null, r_hashes bytea[] default null, r_spaces int[] default null,
    r_replaces boolean[] default null, codes smallint[] default null,
    out committed int, out lost bigint[], out repeated bigint[], out enqueued int, out duplicates int,
    out dropped_records int)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    t timestamptz;
    lanes bigint[];
    new_lanes bigint[];
    held_items bigint[];
    held_lanes bigint[];
    held_unstarted boolean[];
    ended_items bigint[];
    ended_runs int[];
    ended_queues int[];
begin
    enqueued := 0;
    duplicates := 0;
    dropped_records := 0;
    perform shoal.lock_runs_shared(runs);
    -- Lanes are created before any is locked, and locked in one statement: two commits cannot deadlock.
    if lane_names is not null then
        new_lanes := shoal.ensure_lanes(lane_names, lane_stages);
    end if;
    select array_agg(distinct s.lane) into lanes
    from shoal.lease s where s.item = any (items) and s.lane is not null;
    lanes := lanes || new_lanes;
    if lanes is not null then
        perform shoal.lock_lanes(lanes);
    end if;
    t := shoal.clock();

    if kinds is null then
        with held as (
            delete from shoal.lease s using unnest(items, epochs, took, codes) as i(item, epoch, seconds, code)
            where s.item = i.item and s.epoch = i.epoch
            returning s.item, s.epoch, s.run, s.queue, s.tries, s.rescues, s.lane, s.claimed_at, s.started_at, i.seconds,
                      i.code
        ),
        ended as (
            insert into shoal.outcome (item, claimed_at, ended_at, run, queue, epoch, worker, seconds, tries, rescues,
                                       state, outcome)
            select h.item, h.claimed_at, t, h.run, h.queue, h.epoch, worker_no, h.seconds, h.tries + 1, h.rescues,
                   'done', 'done'
            from held h
        ),
        delta as (
            insert into shoal.count_delta (at, queue, worker, leased, done, seconds, latencies)
            select t, h.queue, worker_no, -count(*), count(*), sum(h.seconds), array_agg(h.code)
            from held h group by h.queue
        )
        select count(*), array_agg(h.item), array_agg(h.lane), array_agg(h.started_at is null),
               array_agg(h.run), array_agg(h.queue)
        into committed, held_items, held_lanes, held_unstarted, ended_runs, ended_queues from held h;
        ended_items := held_items;
        if lanes is not null then
            update shoal.lane l
            set taken = l.taken - n.left_lane, unstarted = l.unstarted - n.unstarted,
                next_at = case when l.delay_max > 0 and n.unstarted > 0
                               then greatest(l.next_at, t + shoal.lane_pause(l)) else l.next_at end
            from (select h.lane, count(*)::int as left_lane, count(*) filter (where h.unstarted)::int as unstarted
                  from unnest(held_lanes, held_unstarted) as h(lane, unstarted)
                  where h.lane is not null group by h.lane) n
            where l.id = n.lane;
        end if;
    else
        with input as materialized (
            select u.*
            from unnest(items, epochs, kinds, outcomes, delays, errors, took, details, codes)
                as u(item, epoch, kind, outcome, delay, error, seconds, detail, code)
        ),
        held as (
            delete from shoal.lease s using input i where s.item = i.item and s.epoch = i.epoch
            returning s.item, s.epoch, s.run, s.queue, s.priority, s.tries, s.rescues, s.lane, s.claimed_at, s.started_at,
                      i.kind, i.outcome, i.delay, i.error, i.seconds, i.detail, i.code
        ),
        classified as materialized (
            select h.*,
                   -- The first item of an ordered lane keeps its slot while it waits for a retry.
                   coalesce(l.ordered, false) and h.kind in ('retry', 'throttled', 'put_off', 'egress') as holds,
                   l.next_at, l.delay_max
            from held h left join shoal.lane l on l.id = h.lane
        ),
        ended as (
            insert into shoal.outcome (item, claimed_at, ended_at, run, queue, epoch, worker, seconds, tries, rescues,
                                       state, outcome, error, detail)
            select j.item, j.claimed_at, t, j.run, j.queue, j.epoch, worker_no, j.seconds, j.tries + 1, j.rescues,
                   j.kind, j.outcome, j.error, j.detail
            from classified j where j.kind in ('done', 'dead', 'skipped')
        ),
        tried as (
            insert into shoal.attempt (item, claimed_at, ended_at, run, epoch, worker, seconds, outcome, error, detail)
            select j.item, j.claimed_at, t, j.run, j.epoch, worker_no, j.seconds, j.outcome, j.error, j.detail
            from classified j where j.kind in ('retry', 'throttled', 'put_off', 'egress')
        ),
        put_off as (
            insert into shoal.delayed
                (item, lane, due_at, since, run, queue, priority, epoch, tries, rescues, slotted, reason)
            select j.item, j.lane,
                   greatest(t + shoal.seconds(j.delay),
                            case when j.holds then j.next_at end,
                            case when j.holds and j.started_at is null then t + shoal.seconds(j.delay_max) end),
                   t, j.run, j.queue, j.priority, j.epoch,
                   j.tries + case when j.kind = 'retry' then 1 else 0 end, j.rescues, j.holds,
                   case j.kind when 'put_off' then 'throttled' else j.kind end
            from classified j
            where j.kind in ('retry', 'put_off', 'egress') or (j.kind = 'throttled' and (j.lane is null or j.holds))
        ),
        back_in_line as (
            insert into shoal.waiting (item, lane, since, run, queue, priority, epoch, tries, rescues)
            select j.item, j.lane, t, j.run, j.queue, j.priority, j.epoch, j.tries, j.rescues
            from classified j where j.kind = 'throttled' and j.lane is not null and not j.holds
        ),
        freed as (
            update shoal.lane l
            set taken = l.taken - n.left_lane,
                unstarted = l.unstarted - n.left_unstarted + n.held_again,
                waiting = l.waiting + n.back,
                next_at = case when l.delay_max > 0 and n.never_started
                               then greatest(l.next_at, t + shoal.lane_pause(l)) else l.next_at end,
                blocked_until = greatest(l.blocked_until, n.blocked_until),
                blocked_why = case when n.blocked_until >= coalesce(l.blocked_until, '-infinity')
                                   then n.why else l.blocked_why end
            from (
                select j.lane,
                       count(*) filter (where not j.holds)::int as left_lane,
                       count(*) filter (where not j.holds and j.started_at is null)::int as left_unstarted,
                       count(*) filter (where j.holds and j.started_at is not null)::int as held_again,
                       count(*) filter (where j.kind = 'throttled' and not j.holds)::int as back,
                       -- Nothing was sent for a skipped item that has not started: its host need not rest.
                       bool_or(j.started_at is null and j.kind <> 'skipped') as never_started,
                       max(t + shoal.seconds(j.delay)) filter (where j.kind = 'throttled') as blocked_until,
                       max(j.error) filter (where j.kind = 'throttled') as why
                from classified j where j.lane is not null group by j.lane
            ) n
            where l.id = n.lane
        ),
        counted as (
            insert into shoal.author_count as c (run, worker, name, number)
            select j.run, worker_no, n.key, sum(n.value::bigint)
            from classified j cross join lateral json_each_text(j.detail -> 'counters') as n(key, value)
            where j.kind = 'done' group by j.run, n.key
            on conflict (run, worker, name) do update set number = c.number + excluded.number
        ),
        delta as (
            insert into shoal.count_delta
                (at, queue, worker, leased, done, dead, skipped, delayed, waiting, retried, throttled, seconds,
                 latencies)
            select t, j.queue, worker_no, -count(*),
                   count(*) filter (where j.kind = 'done'), count(*) filter (where j.kind = 'dead'),
                   count(*) filter (where j.kind = 'skipped'),
                   count(*) filter (where j.kind in ('retry', 'put_off', 'egress')
                                      or (j.kind = 'throttled' and (j.lane is null or j.holds))),
                   count(*) filter (where j.kind = 'throttled' and j.lane is not null and not j.holds),
                   count(*) filter (where j.kind = 'retry'), count(*) filter (where j.kind in ('throttled', 'put_off')),
                   sum(j.seconds), array_agg(j.code)
            from classified j group by j.queue
        )
        select count(*), array_agg(j.item), array_agg(j.item) filter (where j.kind in ('done', 'dead')),
               array_agg(j.run) filter (where j.kind in ('done', 'dead')),
               array_agg(j.queue) filter (where j.kind in ('done', 'dead'))
        into committed, held_items, ended_items, ended_runs, ended_queues from classified j;
    end if;
    if r_hashes is not null and ended_items is not null then
        dropped_records := shoal.store_keyed_records(t, worker_no, r_items, r_ns, r_records, r_keys, r_hashes, r_spaces,
                                                     r_replaces, ended_items, ended_runs, ended_queues);
    end if;
    if r_items is not null and ended_items is not null then
        with ended as materialized (
            select d.* from unnest(ended_items, ended_runs, ended_queues) as d(item, run, queue)
        ),
        stored as (
            insert into shoal.result (item, run, n, record)
            select r.item, d.run, r.n, r.record
            from unnest(r_items, r_ns, r_records, r_hashes) as r(item, n, record, hash) join ended d on d.item = r.item
            where r.hash is null
            returning item
        ),
        per_queue as materialized (
            select d.run, d.queue, count(*) as records, array_agg(distinct s.item order by s.item) as items
            from stored s join ended d on d.item = s.item group by d.run, d.queue
        ),
        delta as (
            insert into shoal.count_delta (at, queue, worker, results)
            select t, p.queue, worker_no, p.records from per_queue p
        )
        insert into shoal.result_change (at, run, stage, records, items)
        select t, p.run, k.stage, p.records, p.items from per_queue p join shoal.queue k on k.id = p.queue;
    end if;

    if f_parents is not null and ended_items is not null then
        select i.enqueued, i.duplicates into enqueued, duplicates
        from shoal.intake(t, f_queues, f_hashes, f_keys, f_urls, f_payloads, f_lane_ix, f_priorities, f_delays,
                          f_max_tries, f_requests, f_depths, f_parents, ended_items, new_lanes) i;
    end if;
    if lanes is not null then
        perform shoal.admit(lanes, t);
    end if;
    if enqueued > 0 then
        perform shoal.wake();
    end if;

    if committed < cardinality(items) then
        select array_agg(u.item) filter (where not u.mine), array_agg(u.item) filter (where u.mine)
        into lost, repeated
        from (
            select u.item,
                   exists (select 1 from shoal.outcome o where o.run = u.run and o.item = u.item
                             and o.epoch = u.epoch and o.worker = worker_no and o.state in ('done', 'dead', 'skipped')
                             and o.outcome <> 'poison')
                   or exists (select 1 from shoal.attempt a where a.run = u.run and a.item = u.item
                                and a.epoch = u.epoch and a.worker = worker_no
                                and a.outcome not in ('crashed', 'released', 'poison', 'cancelled')) as mine
            from (
                select n.item, n.epoch, i.run
                from unnest(items, epochs) as n(item, epoch)
                left join lateral (select i.run from shoal.item i where i.run = any (runs) and i.id = n.item) i on true
                where n.item not in (select h.item from unnest(held_items) as h(item))
            ) u
        ) u;
    end if;
    lost := coalesce(lost, '{}');
    repeated := coalesce(repeated, '{}');
end $$;
