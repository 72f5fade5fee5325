-- The log of result changes: what differs from PostgreSQL in lists, times and the numbering of changes, which needs no
-- step of its own here.

-- name: last_change
select coalesce(max(c.position), 0) from result_change c

-- name: change_items
select c.position, c.items from result_change c where c.position in (select value from json_each(?1))

-- name: changed_results
-- Records of items, [id, ...], in their order; of the first item only those after n. Nested loops give this order without
-- a sort, so that the caller can stop when it has enough bytes.
select j.key, r.item, r.n, i.key, i.url, r.record, r.record_key
from json_each(?1) j
cross join item i on i.id = j.value
cross join result r on r.run = i.run and r.item = i.id
where j.key > 0 or r.n > ?2
limit ?3

-- name: change_lag
-- Of a window of the log, so that it costs the same however far behind a cursor is.
select count(*) as seen, sum(w.wanted) as changes, coalesce(sum(w.wanted * w.records), 0) as records,
       min(case when w.wanted then w.at end) as "oldest [moment]",
       coalesce((clock() - min(case when w.wanted then w.at end)) / 1e6, 0.0) as seconds
from (
    select c.records, c.at,
           (?3 is null or r.scraper in (select value from json_each(?3)))
           and (?4 is null or g.name in (select value from json_each(?4)))
           and (?5 is null or r.no = ?5) and r.state <> 'removed' as wanted
    from (select x.run, x.stage, x.records, x.at from result_change x
          where x.position > ?1 order by x.position limit ?2) c
    cross join run r on r.no = c.run
    cross join stage g on g.id = c.stage
) w

-- name: get_cursors
select c.name, c.position, c.item, c.n, c.delivered, c.created_at as "created_at [moment]",
       c.moved_at as "moved_at [moment]", c.failing_since as "failing_since [moment]", c.last_error, c.state,
       (select count(*) from (select 1 from dead_letter d where d.cursor = c.name limit 1000)) as dead_letters
from result_cursor c where c.name >= ?1 and c.name < ?1 || char(1114111) order by c.name limit ?2

-- name: move_cursor
update result_cursor
set position = ?5, item = ?6, n = ?7, delivered = delivered + ?8, moved_at = ?9, failing_since = null,
    last_error = null
where name = ?1 and position = ?2 and item = ?3 and n = ?4

-- name: cursor_is_at
select exists (select 1 from result_cursor where name = ?1 and position = ?2 and item = ?3 and n = ?4)

-- name: add_dead_letters
-- [run id, item, n, reason].
insert into dead_letter (cursor, run, item, n, at, reason)
select ?1, r.no, j.value ->> 1, j.value ->> 2, ?3, j.value ->> 3
from json_each(?2) j cross join run r on r.id = j.value ->> 0
where true
on conflict (cursor, run, item, n) do update set at = excluded.at, reason = excluded.reason

-- name: remove_dead_letters
-- [run id, item, n].
delete from dead_letter where cursor = ?1 and (run, item, n) in (
    select r.no, j.value ->> 1, j.value ->> 2 from json_each(?2) j cross join run r on r.id = j.value ->> 0)
returning cursor

-- name: dead_letters
select r.id as run_id, d.run, d.item, d.n, d.at as "at [moment]", d.reason
from dead_letter d cross join run r on r.no = d.run
where d.cursor = ?1 and (d.run, d.item, d.n) > (?2, ?3, ?4) and r.state <> 'removed'
order by d.run, d.item, d.n limit ?5

-- name: records_by_ref
-- [run id, item, n].
select r.id as run_id, r.scraper, g.name as stage, x.item, x.n, i.key, i.url, x.record, x.record_key
from json_each(?1) j
cross join run r on r.id = j.value ->> 0 and r.state <> 'removed'
cross join result x on x.run = r.no and x.item = j.value ->> 1 and x.n = j.value ->> 2
cross join item i on i.id = x.item
cross join stage g on g.id = i.stage
order by j.key
