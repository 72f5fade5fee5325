-- A page that redirects is the same page as its target, so the target gets an item too, an alias: it ends at once as
-- skipped, with the outcome `duplicate`, and later links to it are duplicates by the ordinary unique index.
--
-- Decide whether the attempt with this lease may request the target of a redirect. The call may be repeated.
--   visit: yes. Either the target is new, and is this item's alias from now on; or it is this item itself, or its alias;
--     or an alias that redirects further, so that only its own target tells which page it is.
--   wait: the target is an alias of an item that runs now. Whether it redirects further is known when that has ended.
--   duplicate: the target is the page of another item (`same_as`). This item has ended as skipped, in this transaction.
--   lost: the lease is no longer valid.
-- via: the hash of the target before this one, which is therefore an alias that redirects further.
create or replace function shoal.visit_redirect(
    worker_no int, run_no int, item_no bigint, epoch_no int, in_queue int, hash bytea, target_key text, target_url text,
    target_request json, target_depth smallint, lane_name text, via bytea, shown text, took real,
    out decision text, out same_as bigint)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    t timestamptz;
    stage_no int;
    lane_no bigint;
    passed bigint;
    target bigint;
    alias_of bigint;
    redirects boolean;
    following bigint;
begin
    perform shoal.lock_runs_shared(array[run_no]);
    if not exists (select 1 from shoal.lease s where s.item = item_no and s.epoch = epoch_no) then
        select (o.detail ->> 'same_as')::bigint into same_as from shoal.outcome o
        where o.run = run_no and o.item = item_no and o.epoch = epoch_no and o.outcome = 'duplicate';
        decision := case when same_as is null then 'lost' else 'duplicate' end;
        return;
    end if;
    select k.stage into stage_no from shoal.queue k where k.id = in_queue;
    if via is not null then
        select i.id into passed from shoal.item i where i.stage = stage_no and i.key_hash = via;
        update shoal.outcome o set detail = json_build_object('same_as', item_no, 'redirects', true)
        where o.run = run_no and o.item = passed and o.epoch = 0 and o.outcome = 'duplicate'
          and (o.detail ->> 'same_as')::bigint = item_no;
    end if;

    select i.id into target from shoal.item i where i.stage = stage_no and i.key_hash = hash;
    if target is null then
        if lane_name is not null then
            lane_no := (shoal.ensure_lanes(array[lane_name], array[stage_no]))[1];
        end if;
        -- Lanes are locked before rows. The lock keeps the lease until this transaction ends.
        perform 1 from shoal.lease s where s.item = item_no and s.epoch = epoch_no for share;
        if not found then
            decision := 'lost';
            return;
        end if;
        t := shoal.clock();
        insert into shoal.item (id, lane, parent, created_at, run, stage, queue, priority, key_hash, key, url, request,
                                depth)
        values (nextval('shoal.item_id'), lane_no, item_no, t, run_no, stage_no, in_queue, 0, hash, target_key,
                target_url, target_request, target_depth)
        on conflict (stage, key_hash) do nothing returning id into target;
        if target is not null then
            insert into shoal.outcome (item, claimed_at, ended_at, run, queue, epoch, seconds, tries, rescues, state,
                                       outcome, error, detail)
            values (target, t, t, run_no, in_queue, 0, 0, 0, 0, 'skipped', 'duplicate',
                    'the same page as item ' || item_no || ', which redirects to it',
                    json_build_object('same_as', item_no));
            insert into shoal.count_delta (at, queue, skipped) values (t, in_queue, 1);
            decision := 'visit';
            return;
        end if;
        select i.id into target from shoal.item i where i.stage = stage_no and i.key_hash = hash;
    end if;

    select (o.detail ->> 'same_as')::bigint, o.detail ->> 'redirects' is not null into alias_of, redirects
    from shoal.outcome o where o.run = run_no and o.item = target and o.epoch = 0 and o.outcome = 'duplicate';
    if redirects then
        decision := 'visit';
        return;
    end if;
    -- One at a time: of items that redirect to each other, one must be visited.
    perform pg_catalog.pg_advisory_xact_lock(21321, stage_no);
    same_as := target;
    for step in 1..1000 loop
        select (o.detail ->> 'same_as')::bigint into following from shoal.outcome o
        where o.run = run_no and o.item = same_as and o.state = 'skipped' and o.outcome = 'duplicate';
        exit when following is null;
        same_as := following;
    end loop;
    if same_as = item_no then
        decision := 'visit';
    elsif exists (select 1 from shoal.lease s where s.item = alias_of) then
        decision := 'wait';
    else
        decision := 'duplicate';
        perform shoal.commit(
            worker_no, array[item_no], array[epoch_no], array[run_no], array['skipped'], array['duplicate'],
            array[0::double precision], array['redirects to ' || shown || ', the same page as item ' || same_as],
            array[took], array[json_build_object('same_as', same_as)],
            null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null);
    end if;
end $$;
