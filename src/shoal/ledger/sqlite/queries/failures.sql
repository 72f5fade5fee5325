-- Groups of dead items. PostgreSQL has the same names and columns; there grouping is one function.

-- name: runs_with_ungrouped
with recursive x(no) as (
    select (select o.run from outcome o indexed by outcome_ungrouped where o.state = 'dead' and o.failure is null
              and o.run > 0 order by o.run limit 1)
    union all
    select (select o.run from outcome o indexed by outcome_ungrouped where o.state = 'dead' and o.failure is null
              and o.run > x.no order by o.run limit 1)
    from x where x.no is not null limit 100
)
select x.no as run from x cross join run r on r.no = x.no where r.state <> 'removed'

-- name: ungrouped
select x.item, x.epoch, i.stage, g.name as stage_name, x.outcome, x.error, i.url, i.key, x.tries,
       x.ended_at as "ended_at [moment]"
from (select o.item, o.epoch, o.outcome, o.error, o.tries, o.ended_at from outcome o indexed by outcome_ungrouped
      where o.state = 'dead' and o.failure is null and o.run = ?1 and o.item > ?2 order by o.item limit ?3) x
cross join item i on i.id = x.item
cross join stage g on g.id = i.stage
order by x.item

-- name: count_ungrouped
select count(*) from (select 1 from outcome o indexed by outcome_ungrouped
                      where o.state = 'dead' and o.failure is null and o.run = ?1 limit ?2) x

-- name: group_add
-- Groups that are missing: [stage, outcome, host, shape].
insert into failure_group (run, stage, outcome, host, shape, first_at, last_at)
select distinct ?1, j.value ->> 0, j.value ->> 1, j.value ->> 2, j.value ->> 3, 0, 0 from json_each(?2) j
where true on conflict (run, stage, outcome, host, shape) do nothing

-- name: group_pick
-- [item, epoch, stage, outcome, host, shape]. Items that are no longer dead, or in a group already, are left out.
insert into temp.grouped (item, failure, ended_at, error)
select o.item, g.id, o.ended_at, o.error
from json_each(?2) j
cross join outcome o on o.item = j.value ->> 0 and o.epoch = j.value ->> 1 and o.run = ?1
                    and o.state = 'dead' and o.failure is null
cross join failure_group g on g.run = ?1 and g.stage = j.value ->> 2 and g.outcome = j.value ->> 3
                          and g.host = j.value ->> 4 and g.shape = j.value ->> 5

-- name: group_outcomes
update outcome set failure = (select g.failure from temp.grouped g where g.item = outcome.item)
where item in (select g.item from temp.grouped g)

-- name: group_minutes
insert into failure_minute (failure, minute, items)
select g.failure, g.ended_at - g.ended_at % 60000000, count(*) from temp.grouped g group by 1, 2
on conflict (failure, minute) do update set items = items + excluded.items

-- name: group_counts
-- The columns beside max() are those of its row.
update failure_group as g
set items = g.items + n.n, first_at = case when g.items = 0 then n.first_at else min(g.first_at, n.first_at) end,
    last_at = max(g.last_at, n.last_at), item = iif(n.last_at >= g.last_at, n.item, g.item),
    error = iif(n.last_at >= g.last_at, coalesce(n.error, ''), g.error)
from (select d.failure, d.n, d.first_at, w.last_at, w.item, w.error
      from (select x.failure, count(*) as n, min(x.ended_at) as first_at from temp.grouped x group by x.failure) d
      join (select x.failure, max(x.ended_at) as last_at, x.item, x.error from temp.grouped x group by x.failure) w
        on w.failure = d.failure) n
where g.id = n.failure

-- name: group_end
delete from temp.grouped

-- name: list_failures
-- A run has a bounded number of groups. The cursor is the time of the last death in microseconds, and the group.
select g.id, s.name as stage, g.outcome, g.host, g.shape, g.items, g.first_at as "first_at [moment]",
       g.last_at as "last_at [moment]", g.error, g.item, coalesce(i.url, i.key, '') as name, g.muted_by,
       g.muted_at as "muted_at [moment]", g.last_at as place
from failure_group g indexed by failure_group_last
cross join stage s on s.id = g.stage
left join item i on i.id = g.item
where g.run = ?1 and g.items > 0 and (?2 is null or (g.muted_at is not null) = ?2)
  and (?3 is null or (g.last_at, g.id) < (?3, ?4))
order by g.last_at desc, g.id desc limit ?5

-- name: get_failure
select g.id, s.name as stage, g.outcome, g.host, g.shape, g.items, g.first_at as "first_at [moment]",
       g.last_at as "last_at [moment]", g.error, g.item, coalesce(i.url, i.key, '') as name, g.muted_by,
       g.muted_at as "muted_at [moment]", 0 as place
from failure_group g
join stage s on s.id = g.stage
left join item i on i.id = g.item
where g.run = ?1 and g.id = ?2

-- name: failure_trends
-- Deaths of the last ?2 minutes: minutes ago, and how many.
select m.failure, (clock() - clock() % 60000000 - m.minute) / 60000000 as ago, m.items
from json_each(?1) u
cross join failure_minute m on m.failure = u.value
where m.minute > clock() - clock() % 60000000 - ?2 * 60000000

-- name: mute_failure_set
update failure_group set muted_by = iif(?3, ?4, null), muted_at = iif(?3, ?5, null)
where run = ?1 and id = ?2 and (muted_at is not null) <> ?3

-- name: find_failure
-- Items of a group; see find_items.
select json_group_array(f.item) as ids, null as seen_to from (
    select o.item from outcome o indexed by outcome_failure
    where o.failure = ?2 and o.state = 'dead' and o.item > ?3 and o.run = ?1 order by o.item limit ?4) f

-- name: tidy_failure_minutes
delete from failure_minute where (failure, minute) in (
    select m.failure, m.minute from failure_minute m indexed by failure_minute_old where m.minute < ?1 limit ?2)

-- name: audit_failures
-- The counter of a group must equal the number of its dead items, and every group of an item must exist.
select 'failure group ' || g.id || ': says ' || g.items || ' items, has ' || count(o.item) as detail
from failure_group g left join outcome o on o.failure = g.id and o.state = 'dead'
where not exists (select 1 from run r where r.no = g.run and r.state = 'removed')
group by g.id having g.items <> count(o.item)
union all
select 'item ' || o.item || ': its failure group ' || o.failure || ' is missing, or it is not dead' from outcome o
where o.failure is not null
  and (o.state <> 'dead' or not exists (select 1 from failure_group g where g.id = o.failure and g.run = o.run))
limit 20
