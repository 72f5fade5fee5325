-- The history of runs. Times are seconds since 1970. SQLite has the same names and columns, but no deltas.

-- name: history_activity
select extract(epoch from a.at)::bigint as at, a.done, a.dead, a.skipped, a.retried, a.throttled, a.results, a.seconds,
       a.waits, a.works
from shoal.run_activity a
where a.run = $1 and a.step = any ('{60, 3600}') and a.at >= to_timestamp($2::float8) and a.at < to_timestamp($3::float8)

-- name: history_unfolded
select extract(epoch from date_trunc('minute', d.at))::bigint as at, sum(d.done)::bigint as done,
       sum(d.dead)::bigint as dead, sum(d.skipped)::bigint as skipped, sum(d.retried)::bigint as retried,
       sum(d.throttled)::bigint as throttled, sum(d.results)::bigint as results, sum(d.seconds)::float8 as seconds
from shoal.count_delta d
where d.worker is not null and d.queue in (select k.id from shoal.queue k where k.run = $1)
  and d.at >= to_timestamp($2::float8) and d.at < to_timestamp($3::float8)
group by 1

-- name: history_unfolded_latencies
select extract(epoch from date_trunc('minute', d.at))::bigint as at, c.code, count(*)::int as n
from shoal.count_delta d cross join lateral unnest(d.latencies) as c(code)
where d.worker is not null and d.queue in (select k.id from shoal.queue k where k.run = $1)
  and d.at >= to_timestamp($2::float8) and d.at < to_timestamp($3::float8) and c.code is not null
group by 1, 2

-- name: history_state
-- In the order of time, so that the last sample of a step is known.
select extract(epoch from s.at)::bigint as at, s.ready, s.waiting, s.delayed, s.leased, s.done, s.dead, s.skipped,
       s.cancelled, s.waiting_for
from shoal.run_state s
where s.run = $1 and s.step = any ('{60, 3600}') and s.at >= to_timestamp($2::float8) and s.at < to_timestamp($3::float8)
order by s.at

-- name: put_sample
select shoal.put_sample($1::int, $2::bigint[], $3::json, $4::float8, $5::float8)

-- name: runs_to_sample
-- Active runs, and those that were paused less than a day ago.
select r.no, r.id from shoal.run r
where r.no > $1::int and (r.state = 'active' or (r.state = 'paused' and r.changed_at > shoal.clock() - interval '1 day'))
order by r.no limit $2
