-- The history of runs: histograms of latencies (model/latency.py) are arrays of counts, one for each bucket; buckets after
-- the last one that is not empty are left out.

-- The histogram of numbers of buckets with their counts. 63: unknown, not counted.
create or replace function shoal.buckets(numbers int[], counts int[]) returns int[]
language sql immutable as $$
    select coalesce(array_agg(coalesce(x.n, 0) order by b.number), '{}')
    from generate_series(0, (select max(u.number) from unnest(numbers) as u(number) where u.number < 63)) as b(number)
    left join (select u.number, sum(u.n)::int as n from unnest(numbers, counts) as u(number, n) group by u.number) x
        on x.number = b.number
$$;

create or replace function shoal.add_buckets(a int[], b int[]) returns int[]
language sql immutable as $$
    select coalesce(array_agg(coalesce(u.x, 0) + coalesce(u.y, 0) order by u.place), '{}')
    from unnest(a, b) with ordinality as u(x, y, place)
$$;

create or replace aggregate shoal.sum_buckets(int[]) (sfunc = shoal.add_buckets, stype = int[], initcond = '{}');

create or replace function shoal.hour_of(t timestamptz) returns timestamptz
language sql immutable as $$ select to_timestamp(floor(extract(epoch from t) / 3600) * 3600) $$;

-- Store how a run stands now, and shorten its history: minutes that are older than minutes_kept become hours, and hours
-- that are older than hours_kept are deleted. counts: ready, waiting, delayed, leased, done, dead, skipped, cancelled.
create or replace function shoal.put_sample(
    run_no int, counts bigint[], causes json, minutes_kept double precision, hours_kept double precision) returns void
language plpgsql
set enable_seqscan = off set jit = off
as $$
declare
    t timestamptz := shoal.clock();
    whole timestamptz := shoal.hour_of(t - shoal.seconds(minutes_kept));
begin
    perform 1 from shoal.run r where r.no = run_no and r.state <> 'removed' for key share;
    if not found then
        return;
    end if;
    insert into shoal.run_state as s (run, step, at, ready, waiting, delayed, leased, done, dead, skipped, cancelled,
                                      waiting_for)
    values (run_no, 60, date_trunc('minute', t), counts[1], counts[2], counts[3], counts[4], counts[5], counts[6], counts[7],
            counts[8], causes)
    on conflict (run, step, at) do update
    set ready = excluded.ready, waiting = excluded.waiting, delayed = excluded.delayed, leased = excluded.leased,
        done = excluded.done, dead = excluded.dead, skipped = excluded.skipped, cancelled = excluded.cancelled,
        waiting_for = excluded.waiting_for;

    with old as (
        delete from shoal.run_activity a where a.run = run_no and a.step = 60 and a.at < whole returning a.*
    )
    insert into shoal.run_activity as h
        (run, step, at, done, dead, skipped, retried, throttled, results, seconds, waits, works)
    select run_no, 3600, shoal.hour_of(o.at), sum(o.done), sum(o.dead), sum(o.skipped), sum(o.retried), sum(o.throttled),
           sum(o.results), sum(o.seconds), shoal.sum_buckets(o.waits), shoal.sum_buckets(o.works)
    from old o group by 3
    on conflict (run, step, at) do update
    set done = h.done + excluded.done, dead = h.dead + excluded.dead, skipped = h.skipped + excluded.skipped,
        retried = h.retried + excluded.retried, throttled = h.throttled + excluded.throttled,
        results = h.results + excluded.results, seconds = h.seconds + excluded.seconds,
        waits = shoal.add_buckets(h.waits, excluded.waits), works = shoal.add_buckets(h.works, excluded.works);

    -- An hour has the last sample of its minutes.
    with old as (
        delete from shoal.run_state s where s.run = run_no and s.step = 60 and s.at < whole returning s.*
    )
    insert into shoal.run_state as h (run, step, at, ready, waiting, delayed, leased, done, dead, skipped, cancelled,
                                      waiting_for)
    select distinct on (shoal.hour_of(o.at)) run_no, 3600, shoal.hour_of(o.at), o.ready, o.waiting, o.delayed, o.leased,
           o.done, o.dead, o.skipped, o.cancelled, o.waiting_for
    from old o order by shoal.hour_of(o.at), o.at desc
    on conflict (run, step, at) do update
    set ready = excluded.ready, waiting = excluded.waiting, delayed = excluded.delayed, leased = excluded.leased,
        done = excluded.done, dead = excluded.dead, skipped = excluded.skipped, cancelled = excluded.cancelled,
        waiting_for = excluded.waiting_for;

    delete from shoal.run_activity a where a.run = run_no and a.step = 3600 and a.at < t - shoal.seconds(hours_kept);
    delete from shoal.run_state s where s.run = run_no and s.step = 3600 and s.at < t - shoal.seconds(hours_kept);
end $$;
