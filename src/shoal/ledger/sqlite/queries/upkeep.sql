-- Upkeep and health. next_due differs from PostgreSQL in lists and in the arithmetic of times; the clock's offset and
-- the cursors of upkeep are stored by functions there or not needed.

-- name: ticks_due
-- Upkeep whose interval has passed, {"name": microseconds}. A time in the future means that the clock was set back.
select k.name from json_each(?1) j cross join tick k on k.name = j.key
where k.at <= clock() - j.value or k.at > clock() + j.value

-- name: acquire_tick
-- True for one caller per interval.
update tick set at = ?2 where name = ?1 and (at <= ?2 - ?3 or at > ?2 + ?3)

-- name: tick_cursor
select k.cursor from tick k where k.name = ?1

-- name: set_tick_cursor
update tick set cursor = ?2 where name = ?1

-- name: unfinished_bulk
-- Whether a change of many items may have been interrupted.
select exists (select 1 from run r where r.state = 'removed')
    or exists (select 1 from run r indexed by run_lane_work where r.lane_work is not null
                 and r.state in ('active', 'paused') and (r.lane_work = 'readmit' or exists (
                     select 1 from run o indexed by run_active
                     cross join queue k on k.run = o.no
                     cross join queue_count c on c.queue = k.id
                     where o.state = 'active' and not o.idle and o.no <> r.no and c.waiting > 0)))
    or exists (select 1 from run r join queue k on k.run = r.no join queue_count c on c.queue = k.id
               where r.state = 'cancelled' and c.ready + c.waiting + c.delayed + c.leased > 0)

-- name: finishable_runs
-- Sealed and without open items, from the counts alone.
select r.no, r.id from run r
where r.state = 'active' and r.sealed
  and not exists (select 1 from queue k join queue_count c on c.queue = k.id
                  where k.run = r.no and c.ready + c.waiting + c.delayed + c.leased > 0)

-- name: tidy_locks
delete from lock where finished_at < ?1

-- name: tidy_request_keys
-- Also those that were never finished: refused requests leave them.
delete from lock where name in (
    select k.name from lock k where k.name >= 'request-key/' and k.name < 'request-key0' and k.expires_at < ?1 limit ?2)

-- name: tidy_minutes
delete from minute_count where (minute, queue, worker)
    in (select m.minute, m.queue, m.worker from minute_count m where m.minute < ?1 limit ?2)

-- name: next_due
-- Only the first delayed items are read: when none of them is in this scope, no item in it is due before the last of
-- them.
select (coalesce(min(x.due_at) filter (where x.ours), case when count(*) = ?5 then max(x.due_at) end)
        - clock()) / 1e6
from (
    select d.due_at, r.state = 'active' and (?1 is null or r.scraper = ?1)
                     and (?2 is null or r.id in (select value from json_each(?2)))
                     and (?3 is null or s.name in (select value from json_each(?3)))
                     and (?4 is null or k.partition in (select value from json_each(?4))) as ours
    from (select d.due_at, d.queue from delayed d order by d.due_at limit ?5) d
    cross join queue k on k.id = d.queue
    cross join stage s on s.id = k.stage
    cross join run r on r.no = k.run
) x

-- name: last_seen
-- The latest time stored in the ledger: heartbeats, upkeep, events.
select max(coalesce((select max(heartbeat_at) from worker), 0), coalesce((select max(at) from tick), 0),
           coalesce((select at from event order by id desc limit 1), 0))

-- name: clock_offset
select c.offset from clock c where c.boot = ?1

-- name: set_clock_offset
insert into clock (boot, offset) values (?1, ?2) on conflict (boot) do update set offset = excluded.offset

-- name: ledger_size
-- Without the write-ahead log, which is emptied again and again.
select c.page_count * s.page_size as bytes from pragma_page_count() c, pragma_page_size() s

-- name: health
-- PostgreSQL also reports sessions and lock waits; a file has none.
select clock() as "clock [moment]"
