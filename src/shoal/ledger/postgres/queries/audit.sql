-- Rules that the tables must keep: every row found is a violation. SQLite has the same ones; these differ in the keys
-- of item, outcome and waiting, in greatest/max, and in counting booleans.

-- name: audit_one_place
-- Law 1: every item is in exactly one table.
select p.item || ' is in ' || count(*) || ' places' as detail
from (
    select item from shoal.ready union all select item from shoal.waiting union all select item from shoal.delayed
    union all select item from shoal.lease union all select item from shoal.outcome
) p group by p.item having count(*) <> 1
union all
select i.id || ' is nowhere' from shoal.item i
where not exists (select 1 from shoal.ready x where x.queue = i.queue and x.priority = i.priority and x.item = i.id)
  and not exists (select 1 from shoal.waiting x where x.item = i.id)
  and not exists (select 1 from shoal.delayed x where x.item = i.id)
  and not exists (select 1 from shoal.lease x where x.item = i.id)
  and not exists (select 1 from shoal.outcome x where x.run = i.run and x.item = i.id)
  and not exists (select 1 from shoal.run r where r.no = i.run and r.state = 'removed')
limit 20

-- name: audit_counts
-- The counts must equal the number of rows.
with actual as (
    select queue, state, count(*) as n from (
        select queue, 'ready' as state from shoal.ready union all select queue, 'waiting' from shoal.waiting
        union all select queue, 'delayed' from shoal.delayed union all select queue, 'leased' from shoal.lease
        union all select queue, state from shoal.outcome
        union all select i.queue, 'results' from shoal.result r join shoal.item i on i.run = r.run and i.id = r.item
    ) x group by queue, state
),
stored as (
    select q.queue, v.state, v.n from shoal.queue_depth q
    cross join lateral (values ('ready', q.ready), ('waiting', q.waiting), ('delayed', q.delayed),
        ('leased', q.leased), ('done', q.done), ('dead', q.dead), ('skipped', q.skipped),
        ('cancelled', q.cancelled), ('results', q.results)) v(state, n)
)
select 'queue ' || coalesce(a.queue, t.queue) || ' ' || coalesce(a.state, t.state) || ': counted '
       || coalesce(t.n, 0) || ', there are ' || coalesce(a.n, 0) as detail
from actual a full join stored t on t.queue = a.queue and t.state = a.state
where coalesce(a.n, 0) <> coalesce(t.n, 0)
  and not exists (select 1 from shoal.queue k join shoal.run r on r.no = k.run
                  where k.id = coalesce(a.queue, t.queue) and r.state = 'removed')
limit 20

-- name: audit_host_slots
-- A lane's counters of slots must equal the number of its slots.
select 'lane ' || l.key || ': says ' || l.slots_granted || '/' || l.slots_wanted || ' slots, has '
       || coalesce(v.granted, 0) || '/' || coalesce(v.waiting, 0) as detail
from shoal.lane l
left join (select lane, count(*) filter (where granted) as granted, count(*) filter (where not granted) as waiting
           from shoal.host_slot group by lane) v on v.lane = l.id
where (l.slots_granted, l.slots_wanted) <> (coalesce(v.granted, 0), coalesce(v.waiting, 0))
limit 20

-- name: audit_delays
-- The effective delay is the declared one raised to the floor, or the one set by an operator.
select 'lane ' || l.key || ': holds ' || l.delay_min || ' to ' || l.delay_max as detail
from shoal.lane l
where (l.delay_min, l.delay_max)
      <> (greatest(l.own_delay_min, case when l.delay_fixed then 0 else l.floor end)::real,
          greatest(l.own_delay_max, case when l.delay_fixed then 0 else l.floor end)::real)
limit 20

-- name: audit_changes
-- Every stored result must be named by the log of changes, or no sink would get it.
select 'the results of item ' || u.item || ' are in no change' as detail
from (
    select r.run, r.item from shoal.result r
    except select c.run, j.item from shoal.result_change c, unnest(c.items) as j(item)
) u
where not exists (select 1 from shoal.run n where n.no = u.run and n.state = 'removed')
limit 20
