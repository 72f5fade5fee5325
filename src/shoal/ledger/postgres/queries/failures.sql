-- Groups of dead items. SQLite has the same names and columns; grouping is a function (functions/76_failures.sql).

-- name: runs_with_ungrouped
select x.run from shoal.runs_with_ungrouped() x

-- name: ungrouped
select * from shoal.ungrouped($1::int, $2::bigint, $3::int)

-- name: count_ungrouped
select count(*) from (
    select 1 from shoal.outcome o
    where o.state = 'dead' and o.failure is null and (o.run, o.item) > ($1::int, 0) and (o.run, o.item) < ($1 + 1, 0)
    order by o.run, o.item limit $2::int) x

-- name: group_failures
select shoal.group_failures($1::int, $2::bigint[], $3::int[], $4::int[], $5::text[], $6::text[], $7::text[])

-- name: list_failures
-- A run has a bounded number of groups. The cursor is the time of the last death in microseconds, and the group.
select g.id, s.name as stage, g.outcome, g.host, g.shape, g.items, g.first_at, g.last_at, g.error, g.item,
       coalesce(i.url, i.key, '') as name, g.muted_by, g.muted_at,
       (extract(epoch from g.last_at) * 1000000)::bigint as place
from shoal.failure_group g
join shoal.stage s on s.id = g.stage
left join shoal.item i on i.run = g.run and i.id = g.item
where g.run = $1 and g.items > 0 and ($2::boolean is null or (g.muted_at is not null) = $2)
  and ($3::bigint is null or (g.last_at, g.id) < (to_timestamp($3::bigint / 1000000) + ($3 % 1000000) * interval '1 microsecond', $4::int))
order by g.last_at desc, g.id desc limit $5

-- name: get_failure
select g.id, s.name as stage, g.outcome, g.host, g.shape, g.items, g.first_at, g.last_at, g.error, g.item,
       coalesce(i.url, i.key, '') as name, g.muted_by, g.muted_at, 0::bigint as place
from shoal.failure_group g
join shoal.stage s on s.id = g.stage
left join shoal.item i on i.run = g.run and i.id = g.item
where g.run = $1 and g.id = $2

-- name: failure_trends
-- Deaths of the last $2 minutes: minutes ago, and how many.
select m.failure, (extract(epoch from date_trunc('minute', shoal.clock()) - m.minute) / 60)::int as ago, m.items
from unnest($1::int[]) as u(id)
cross join lateral (select m.failure, m.minute, m.items from shoal.failure_minute m
                    where m.failure = u.id and m.minute > date_trunc('minute', shoal.clock()) - make_interval(mins => $2::int)
                    order by m.failure, m.minute) m

-- name: mute_failure
with muted as (
    update shoal.failure_group g
    set muted_by = case when $3::boolean then $4 end, muted_at = case when $3 then shoal.clock() end
    where g.run = $1 and g.id = $2 and (g.muted_at is not null) <> $3
    returning g.id, g.outcome, g.shape
)
insert into shoal.event (at, run, actor, action, subject, detail)
select shoal.clock(), $1, $4, case when $3 then 'failure.muted' else 'failure.unmuted' end, m.id::text,
       json_build_object('outcome', m.outcome, 'message', m.shape)
from muted m
returning id

-- name: find_failure
select * from shoal.find_failure($1::int, $2::int, $3::bigint, $4::int)

-- name: tidy_failure_minutes
delete from shoal.failure_minute x where x.ctid = any (array(
    select y.ctid from shoal.failure_minute y where y.minute < shoal.clock() - interval '3 hours' limit $1::int))

-- name: audit_failures
-- The counter of a group must equal the number of its dead items, and every group of an item must exist.
select 'failure group ' || g.id || ': says ' || g.items || ' items, has ' || count(o.item) as detail
from shoal.failure_group g left join shoal.outcome o on o.failure = g.id and o.state = 'dead'
where not exists (select 1 from shoal.run r where r.no = g.run and r.state = 'removed')
group by g.id having g.items <> count(o.item)
union all
select 'item ' || o.item || ': its failure group ' || o.failure || ' is missing, or it is not dead' from shoal.outcome o
where o.failure is not null
  and (o.state <> 'dead' or not exists (select 1 from shoal.failure_group g where g.id = o.failure and g.run = o.run))
limit 20
