-- name: audit_one_place
-- Law 1: every item stands in exactly one table.
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
-- Counts are what a full count would say.
with actual as (
    select queue, state, count(*) as n from (
        select queue, 'ready' as state from shoal.ready union all select queue, 'waiting' from shoal.waiting
        union all select queue, 'delayed' from shoal.delayed union all select queue, 'leased' from shoal.lease
        union all select queue, state from shoal.outcome
        union all select i.queue, 'results' from shoal.result r join shoal.item i on i.run = r.run and i.id = r.item
    ) x group by queue, state
),
told as (
    select q.queue, v.state, v.n from shoal.queue_depth q
    cross join lateral (values ('ready', q.ready), ('waiting', q.waiting), ('delayed', q.delayed),
        ('leased', q.leased), ('done', q.done), ('dead', q.dead), ('cancelled', q.cancelled),
        ('results', q.results)) v(state, n)
)
select 'queue ' || coalesce(a.queue, t.queue) || ' ' || coalesce(a.state, t.state) || ': counted '
       || coalesce(t.n, 0) || ', there are ' || coalesce(a.n, 0) as detail
from actual a full join told t on t.queue = a.queue and t.state = a.state
where coalesce(a.n, 0) <> coalesce(t.n, 0)
  and not exists (select 1 from shoal.queue k join shoal.run r on r.no = k.run
                  where k.id = coalesce(a.queue, t.queue) and r.state = 'removed')
limit 20

-- name: audit_visits
-- A lane's figures for requests from elsewhere are what its visits say.
select 'lane ' || l.key || ': says ' || l.visiting || '/' || l.wanted || ' visits, has ' || coalesce(v.entered, 0) || '/'
       || coalesce(v.waiting, 0) as detail
from shoal.lane l
left join (select lane, count(*) filter (where entered) as entered, count(*) filter (where not entered) as waiting
           from shoal.visit group by lane) v on v.lane = l.id
where (l.visiting, l.wanted) <> (coalesce(v.entered, 0), coalesce(v.waiting, 0))
limit 20

-- name: audit_delays
-- The delay that holds is the one declared, raised to the floor; or the one an operator fixed.
select 'lane ' || l.key || ': holds ' || l.delay_min || ' to ' || l.delay_max as detail
from shoal.lane l
where (l.delay_min, l.delay_max)
      <> (greatest(l.own_delay_min, case when l.delay_fixed then 0 else l.floor end)::real,
          greatest(l.own_delay_max, case when l.delay_fixed then 0 else l.floor end)::real)
limit 20
