-- The history of runs. Times in arguments and columns are seconds since 1970. On PostgreSQL put_* is one function
-- (functions/76_history.sql).

-- name: history_activity
select a.at / 1000000 as at, a.done, a.dead, a.skipped, a.retried, a.throttled, a.results, a.seconds, a.waits, a.works
from run_activity a
where a.run = ?1 and a.step in (60, 3600) and a.at >= ?2 * 1000000 and a.at < ?3 * 1000000

-- name: history_state
-- In the order of time, so that the last sample of a step is known.
select s.at / 1000000 as at, s.ready, s.waiting, s.delayed, s.leased, s.done, s.dead, s.skipped, s.cancelled,
       s.waiting_for
from run_state s
where s.run = ?1 and s.step in (60, 3600) and s.at >= ?2 * 1000000 and s.at < ?3 * 1000000
order by s.at

-- name: runs_to_sample
-- Active runs, and those that were paused less than a day ago.
select r.no, r.id from run r
where r.no > ?1 and (r.state = 'active' or (r.state = 'paused' and r.changed_at > clock() - 86400000000))
order by r.no limit ?2

-- name: put_state
insert or replace into run_state (run, step, at, ready, waiting, delayed, leased, done, dead, skipped, cancelled,
                                  waiting_for)
select ?1, 60, ?2 - ?2 % 60000000, ?3 ->> 0, ?3 ->> 1, ?3 ->> 2, ?3 ->> 3, ?3 ->> 4, ?3 ->> 5, ?3 ->> 6, ?3 ->> 7, ?4
where exists (select 1 from run r where r.no = ?1 and r.state <> 'removed')

-- name: put_old_activity
-- Minutes before ?2 become hours.
insert into run_activity (run, step, at, done, dead, skipped, retried, throttled, results, seconds, waits, works)
select ?1, 3600, a.at - a.at % 3600000000, sum(a.done), sum(a.dead), sum(a.skipped), sum(a.retried), sum(a.throttled),
       sum(a.results), sum(a.seconds), sum_buckets(a.waits), sum_buckets(a.works)
from run_activity a where a.run = ?1 and a.step = 60 and a.at < ?2 group by 3
on conflict (run, step, at) do update
set done = done + excluded.done, dead = dead + excluded.dead, skipped = skipped + excluded.skipped,
    retried = retried + excluded.retried, throttled = throttled + excluded.throttled,
    results = results + excluded.results, seconds = seconds + excluded.seconds,
    waits = add_buckets(waits, excluded.waits), works = add_buckets(works, excluded.works)

-- name: put_old_states
-- An hour has the last sample of its minutes: with max(), SQLite takes the other columns from the same row.
insert or replace into run_state (run, step, at, ready, waiting, delayed, leased, done, dead, skipped, cancelled,
                                  waiting_for)
select ?1, 3600, x.hour, x.ready, x.waiting, x.delayed, x.leased, x.done, x.dead, x.skipped, x.cancelled, x.waiting_for
from (select max(s.at), s.at - s.at % 3600000000 as hour, s.ready, s.waiting, s.delayed, s.leased, s.done, s.dead,
             s.skipped, s.cancelled, s.waiting_for
      from run_state s where s.run = ?1 and s.step = 60 and s.at < ?2 group by hour) x

-- name: drop_old_activity
delete from run_activity where run = ?1 and step = ?2 and at < ?3

-- name: drop_old_states
delete from run_state where run = ?1 and step = ?2 and at < ?3
