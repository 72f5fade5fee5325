-- Replace the results of an item that ended as done or dead by those of a further attempt, and store its follow-ups; then
-- it is done. Nothing changes unless the item still has this epoch. `replay_id` is stored with the attempt, so that a
-- call that is repeated knows that it took effect. New items make a finished or cancelled run active again.
create or replace function shoal.replay_item(
    run_no int, item_id bigint, old_epoch int, replay_id text, took real,
    r_items bigint[], r_ns int[], r_records json[],
    f_parents bigint[], f_queues int[], f_hashes bytea[], f_keys text[], f_urls text[], f_payloads json[],
    f_lane_ix int[], f_priorities int[], f_delays double precision[], f_max_tries int[], f_requests json[],
    f_depths smallint[], lane_names text[], lane_stages int[],
    r_keys text[], r_hashes bytea[], r_spaces int[], r_replaces boolean[],
    out replayed boolean, out enqueued int, out duplicates int, out dropped_records int)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    t timestamptz;
    ended shoal.outcome;
    new_lanes bigint[];
    stored int := 0;
    removed int;
begin
    enqueued := 0;
    duplicates := 0;
    dropped_records := 0;
    perform shoal.lock_run(run_no);
    select o.* into ended from shoal.outcome o where o.run = run_no and o.item = item_id;
    replayed := ended.epoch = old_epoch and ended.state in ('done', 'dead')
        and exists (select 1 from shoal.run r where r.no = run_no and r.state <> 'removed');
    if replayed is not true then
        -- This same replay may have been made before.
        replayed := coalesce(ended.epoch = old_epoch + 1 and ended.state = 'done'
                             and ended.detail ->> 'replay' = replay_id, false);
        return;
    end if;
    if lane_names is not null then
        new_lanes := shoal.ensure_lanes(lane_names, lane_stages);
        perform shoal.lock_lanes(new_lanes);
    end if;
    t := shoal.clock();
    insert into shoal.attempt (item, claimed_at, ended_at, run, epoch, worker, seconds, outcome, error, detail)
    values (item_id, ended.claimed_at, ended.ended_at, run_no, ended.epoch, ended.worker, ended.seconds, ended.outcome,
            ended.error, ended.detail)
    on conflict (run, item, epoch) do nothing;
    update shoal.outcome o
    set epoch = old_epoch + 1, worker = null, claimed_at = t, ended_at = t, seconds = took, state = 'done',
        outcome = 'done', error = null, detail = json_build_object('replay', replay_id), failure = null
    where o.run = run_no and o.item = item_id;
    update shoal.failure_group g set items = g.items - 1 where g.id = ended.failure;

    -- The older records get numbers below 0, so that the new ones find theirs free. What is still below 0 when they are
    -- stored was not yielded again.
    update shoal.result r set n = -1 - r.n where r.run = run_no and r.item = item_id;
    if r_hashes is not null then
        dropped_records := shoal.store_keyed_records(t, null, r_items, r_ns, r_records, r_keys, r_hashes, r_spaces,
                                                     r_replaces, array[item_id], array[run_no], array[ended.queue]);
    end if;
    if r_items is not null then
        insert into shoal.result (item, run, n, record)
        select r.item, run_no, r.n, r.record
        from unnest(r_items, r_ns, r_records, r_hashes) as r(item, n, record, hash) where r.hash is null;
        get diagnostics stored = row_count;
    end if;
    delete from shoal.result r where r.run = run_no and r.item = item_id and r.n < 0;
    get diagnostics removed = row_count;
    -- Numbers without gaps, so that a reader of the log knows that there are no others.
    update shoal.result r set n = -o.place
    from (select x.n, row_number() over (order by x.n) as place
          from shoal.result x where x.run = run_no and x.item = item_id) o
    where r.run = run_no and r.item = item_id and r.n = o.n;
    update shoal.result r set n = -1 - r.n where r.run = run_no and r.item = item_id;
    insert into shoal.result_change (at, run, stage, records, replaced, items)
    select t, run_no, k.stage, (select count(*) from shoal.result r where r.run = run_no and r.item = item_id), true,
           array[item_id]
    from shoal.queue k where k.id = ended.queue;
    insert into shoal.count_delta (at, queue, results, done, dead)
    values (t, ended.queue, stored - removed, (ended.state = 'dead')::int, -(ended.state = 'dead')::int);

    if f_parents is not null then
        select i.enqueued, i.duplicates into enqueued, duplicates
        from shoal.intake(t, f_queues, f_hashes, f_keys, f_urls, f_payloads, f_lane_ix, f_priorities, f_delays,
                          f_max_tries, f_requests, f_depths, f_parents, array[item_id], new_lanes) i;
    end if;
    if enqueued > 0 then
        with woken as (
            update shoal.run r set state = 'active', finished_at = null, changed_at = t
            where r.no = run_no and r.state in ('finished', 'cancelled') returning r.id
        )
        insert into shoal.event (at, run, actor, action, subject, detail)
        select t, run_no, 'ledger', 'run.active', w.id, '{"because": "a replayed item has new follow-ups"}' from woken w;
        perform shoal.wake();
    end if;
    perform shoal.admit(new_lanes, t);
end $$;
