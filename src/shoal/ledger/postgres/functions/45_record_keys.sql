-- Store the records that have a key, once per (space, hash), and count them. Records without a hash are left out, and
-- those of items that are not in `done_items`. Returns how many were dropped. A record whose key is stored already is
-- dropped or, if it replaces, takes the place of the older one, which may be of another item, even of another run. An
-- item's own older record, which only a replay finds, is always replaced. A replay has no worker, and logs its change.
--
-- Concurrent calls with the same keys wait for each other here, in the order of the keys, so they cannot deadlock: the
-- first statement inserts or locks one row per key. Within a call the order of the arrays counts, as if each record came
-- in a commit of its own.
create or replace function shoal.store_keyed_records(
    t timestamptz, worker_no int, r_items bigint[], r_ns int[], r_records json[], r_keys text[], r_hashes bytea[],
    r_spaces int[], r_replaces boolean[], done_items bigint[], done_runs int[], done_queues int[]) returns int
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    fresh_spaces int[];
    fresh_hashes bytea[];
    dropped int;
begin
    with stored as (
        insert into shoal.result as x (item, run, n, record, record_key, key_space, key_hash, first_run, changed_run)
        select w.item, w.run, w.n, w.record, w.key, w.space, w.hash, w.run, w.run
        from (
            select distinct on (r.space, r.hash) r.item, d.run, r.n, r.record, r.key, r.space, r.hash
            from unnest(r_items, r_ns, r_records, r_keys, r_hashes, r_spaces, r_replaces) with ordinality
                as r(item, n, record, key, hash, space, replaces, ord)
            join unnest(done_items, done_runs) as d(item, run) on d.item = r.item
            where r.hash is not null
            order by r.space, r.hash, case when r.replaces then -r.ord else r.ord end
        ) w
        order by w.space, w.hash
        -- Locks the row that is there, and changes nothing.
        on conflict (key_space, key_hash) where key_hash is not null do update set n = x.n where false
        returning x.key_space, x.key_hash
    )
    select array_agg(s.key_space), array_agg(s.key_hash) into fresh_spaces, fresh_hashes from stored s;

    with input as materialized (
        select r.item, r.n, r.record, r.key, r.hash, r.space, r.replaces, d.run, d.queue,
               lag(r.record::text) over w as before, row_number() over w as place,
               r.ord = max(r.ord) over (partition by r.space, r.hash) as is_last
        from unnest(r_items, r_ns, r_records, r_keys, r_hashes, r_spaces, r_replaces) with ordinality
            as r(item, n, record, key, hash, space, replaces, ord)
        join unnest(done_items, done_runs, done_queues) as d(item, run, queue) on d.item = r.item
        where r.hash is not null
        window w as (partition by r.space, r.hash order by r.ord)
    ),
    -- The older records; their rows are locked. Those of a run that is being removed count as gone: their place is taken in any case.
    old as materialized (
        select k.space, k.hash, x.*
        from (select distinct i.space, i.hash from input i) k
        cross join lateral (
            select x.ctid as row, x.record::text as record, x.run, x.item,
                   (select i.queue from shoal.item i where i.run = x.run and i.id = x.item) as queue,
                   coalesce((select g.state from shoal.run g where g.no = x.run), 'removed') = 'removed' as is_gone
            from shoal.result x
            where x.key_space = k.space and x.key_hash = k.hash and x.key_hash is not null limit 1) x
        where not exists (select 1 from unnest(fresh_spaces, fresh_hashes) as f(space, hash)
                          where f.space = k.space and f.hash = k.hash)
    ),
    judged as materialized (
        select i.*, o.is_gone, o.row as old_row,
               case when i.place = 1 and coalesce(o.is_gone, true) then 'new'
                    when not i.replaces and (i.place > 1 or (o.run, o.item) <> (i.run, i.item)) then 'dropped'
                    when coalesce(i.before, o.record) = i.record::text then 'unchanged'
                    else 'changed' end as verdict,
               o.hash is null and (case when i.replaces then i.is_last else i.place = 1 end) as is_fresh,
               o.hash is not null and case when i.replaces then i.is_last
                                           else i.place = 1 and (o.is_gone or (o.run, o.item) = (i.run, i.item)) end
                   as takes_place
        from input i left join old o on o.space = i.space and o.hash = i.hash
    ),
    moved as (
        update shoal.result x
        set item = j.item, run = j.run, n = j.n, record = j.record, record_key = j.key,
            first_run = case when j.is_gone then j.run else x.first_run end,
            changed_run = case when j.is_gone or x.record::text <> j.record::text then j.run else x.changed_run end
        from judged j
        where j.takes_place and x.ctid = j.old_row
    ),
    lost as (
        insert into shoal.count_delta (at, queue, results)
        select t, o.queue, -count(*) from old o join judged j on j.takes_place and j.space = o.space and j.hash = o.hash
        where o.queue is not null group by o.queue
    ),
    delta as (
        insert into shoal.count_delta
            (at, queue, worker, results, new_records, changed_records, unchanged_records, dropped_records)
        select t, j.queue, worker_no, count(*) filter (where j.is_fresh or j.takes_place),
               count(*) filter (where j.verdict = 'new'), count(*) filter (where j.verdict = 'changed'),
               count(*) filter (where j.verdict = 'unchanged'), count(*) filter (where j.verdict = 'dropped')
        from judged j group by j.queue
    ),
    logged as (
        insert into shoal.result_change (at, run, stage, records, items)
        select t, o.run, o.stage, sum(o.records), array_agg(o.item order by o.item)
        from (select j.run, k.stage, j.item, count(*) as records
              from judged j join shoal.queue k on k.id = j.queue
              where worker_no is not null and (j.is_fresh or j.takes_place) group by j.run, k.stage, j.item) o
        group by o.run, o.stage
    )
    select count(*) filter (where j.verdict = 'dropped') into dropped from judged j;
    return coalesce(dropped, 0);
end $$;
