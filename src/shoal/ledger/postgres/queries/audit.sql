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

-- name: audit_exits
-- States of exits, the times of their changes, and what refers to them.
select 'exit ' || e.pool || ' ' || e.label || ': ' || case
           when p.name is null then 'its pool is missing'
           when e.state = 'good' and (e.until is not null or e.why <> '' or e.set_by <> '') then 'it is good, and has the marks of a ban'
           when e.state <> 'banned' and (e.trial_by is not null or e.trial_until is not null) then 'it is tried without a ban'
           when (e.trial_by is null) <> (e.trial_until is null) then 'half of a trial is stored'
           when e.failures_in_row > e.failed then 'it has more failures in a row than failures'
           else 'its last change is later than that of its pool' end as detail
from shoal.exit e left join shoal.exit_pool p on p.name = e.pool
where p.name is null
   or (e.state = 'good' and (e.until is not null or e.why <> '' or e.set_by <> ''))
   or (e.state <> 'banned' and (e.trial_by is not null or e.trial_until is not null))
   or (e.trial_by is null) <> (e.trial_until is null)
   or e.failures_in_row > e.failed
   or e.changed_at > p.changed_at
limit 20

-- name: audit_exit_pools
-- The number of listed exits; members and lists belong together. The members of a dead worker stay until the next upkeep.
select 'pool ' || p.name || ': says ' || p.listed || ' exits, has ' || count(e.id) as detail
from shoal.exit_pool p left join shoal.exit e on e.pool = p.name and e.unlisted_at is null
group by p.name having p.listed <> count(e.id)
union all
select 'pool ' || m.pool || ': the list of the worker ' || m.worker || ' is missing' from shoal.exit_member m
where m.list <> '' and not exists (select 1 from shoal.exit_list x where x.pool = m.pool and x.name = m.list)
union all
select 'pool ' || x.pool || ': nobody has the list ' || x.name from shoal.exit_list x
where not exists (select 1 from shoal.exit_member m where m.pool = x.pool and m.list = x.name)
union all
select 'pool ' || u.pool || ': the exit ' || u.key || ' is in a list, and not listed' from (
    select x.pool, k.key from shoal.exit_list x cross join lateral unnest(x.keys) as k(key)
    except select e.pool, e.key from shoal.exit e where e.unlisted_at is null) u
limit 20

-- name: audit_exit_hosts
-- Hosts belong to exits of their pool, and each exit has a bounded number.
select 'exit ' || h.exit || ' at ' || h.host || ': ' || case
           when e.id is null then 'there is no such exit'
           when h.blocks_in_row > h.blocked then 'it has more blocks in a row than blocks'
           else 'its last change is later than that of its pool' end as detail
from shoal.exit_host h
left join shoal.exit e on e.id = h.exit and e.pool = h.pool
left join shoal.exit_pool p on p.name = h.pool
where e.id is null or h.blocks_in_row > h.blocked or h.changed_at > p.changed_at
union all
select 'exit ' || h.exit || ' has ' || count(*) || ' hosts' from shoal.exit_host h group by h.exit having count(*) > 200
limit 20
