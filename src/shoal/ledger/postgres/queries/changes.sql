-- The log of result changes: what differs from SQLite in lists, times and the numbering of changes.

-- name: number_changes
select shoal.number_changes($1::int)

-- name: last_unnumbered
select max(c.id) from shoal.result_change c where c.position is null

-- name: is_unnumbered_until
select exists (select 1 from shoal.result_change c where c.position is null and c.id <= $1)

-- name: last_change
select coalesce(max(c.position), 0) from shoal.result_change c where c.position is not null

-- name: change_items
select c.position, c.items from shoal.result_change c where c.position = any ($1::bigint[])

-- name: changed_results
-- Records of (run, item) pairs, in their order; of the first pair only those after $3. At most $4 records, and no more
-- after $5 bytes; the sizes are those on disk, so that large values need not be read for it. selected: how many records
-- there are without the limit of bytes.
select w.pair, w.item, w.n, i.key, i.url, w.record, w.record_key, w.selected
from (
    select v.*, count(*) over () as selected,
           sum(pg_column_size(v.record)) over (order by v.pair, v.n rows between unbounded preceding and 1 preceding)
               as before
    from (
        select u.pair, u.run, r.item, r.n, r.record, r.record_key
        from unnest($1::int[], $2::bigint[]) with ordinality as u(run, item, pair)
        cross join lateral (
            select x.item, x.n, x.record, x.record_key from shoal.result x
            where x.run = u.run and x.item = u.item and (u.pair > 1 or x.n > $3) order by x.n
        ) r
        order by u.pair, r.n limit $4
    ) v
) w
cross join lateral (select x.key, x.url from shoal.item x where x.run = w.run and x.id = w.item limit 1) i
where coalesce(w.before, 0) < $5
order by w.pair, w.n

-- name: change_lag
-- Of a window of the log, so that it costs the same however far behind a cursor is. Changes without a position are new.
select count(*) as seen, count(*) filter (where w.wanted) as changes,
       coalesce(sum(w.records) filter (where w.wanted), 0)::bigint as records,
       min(w.at) filter (where w.wanted) as oldest,
       coalesce(extract(epoch from shoal.clock() - min(w.at) filter (where w.wanted)), 0)::float8 as seconds
from (
    select c.records, c.at,
           ($3::text[] is null or r.scraper = any ($3)) and ($4::text[] is null or g.name = any ($4))
           and ($5::int is null or r.no = $5) and r.state <> 'removed' as wanted
    from (
        (select x.run, x.stage, x.records, x.at from shoal.result_change x
         where x.position > $1 order by x.position limit $2)
        union all
        (select x.run, x.stage, x.records, x.at from shoal.result_change x
         where x.position is null order by x.id limit $2)
        limit $2
    ) c
    join shoal.run r on r.no = c.run
    join shoal.stage g on g.id = c.stage
) w

-- name: get_cursors
select c.*, (select count(*) from (select 1 from shoal.dead_letter d where d.cursor = c.name limit 1000) x) as dead_letters
from shoal.result_cursor c where c.name >= $1 and c.name < $1 || U&'\+10FFFF' order by c.name limit $2

-- name: move_cursor
-- True: moved now, or an earlier try of this call moved it. Dead letters are stored with the move or not at all.
with moved as (
    update shoal.result_cursor
    set position = $5, item = $6, n = $7, delivered = delivered + $8, moved_at = shoal.clock(), failing_since = null,
        last_error = null
    where name = $1 and position = $2 and item = $3 and n = $4
    returning name
),
refused as (
    insert into shoal.dead_letter (cursor, run, item, n, at, reason)
    select m.name, r.no, d.item, d.n, shoal.clock(), d.reason
    from moved m
    cross join unnest($9::text[], $10::bigint[], $11::int[], $12::text[]) as d(run_id, item, n, reason)
    join shoal.run r on r.id = d.run_id
    on conflict (cursor, run, item, n) do update set at = excluded.at, reason = excluded.reason
)
select exists (select 1 from moved)
    or exists (select 1 from shoal.result_cursor where name = $1 and position = $5 and item = $6 and n = $7)

-- name: remove_dead_letters
delete from shoal.dead_letter d
using unnest($2::text[], $3::bigint[], $4::int[]) as u(run_id, item, n) join shoal.run r on r.id = u.run_id
where d.cursor = $1 and d.run = r.no and d.item = u.item and d.n = u.n
returning d.cursor

-- name: dead_letters
select r.id as run_id, d.run, d.item, d.n, d.at, d.reason
from shoal.dead_letter d join shoal.run r on r.no = d.run
where d.cursor = $1 and (d.run, d.item, d.n) > ($2, $3, $4) and r.state <> 'removed'
order by d.run, d.item, d.n limit $5

-- name: records_by_ref
select r.id as run_id, r.scraper, g.name as stage, x.item, x.n, i.key, i.url, x.record, x.record_key
from unnest($1::text[], $2::bigint[], $3::int[]) with ordinality as u(run_id, item, n, at)
join shoal.run r on r.id = u.run_id and r.state <> 'removed'
join shoal.result x on x.run = r.no and x.item = u.item and x.n = u.n
join shoal.item i on i.run = r.no and i.id = x.item
join shoal.stage g on g.id = i.stage
order by u.at
