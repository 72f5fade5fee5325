-- name: heartbeat
-- The schema's version tells a worker of an older release that the ledger was upgraded under it. A heartbeat is not
-- waited for until it is on disk: after a crash of the server the next one is as good, and flushing costs most of it.
update shoal.worker set heartbeat_at = shoal.clock(), report = coalesce($2, report),
    reported_at = case when $2 is null then reported_at else shoal.clock() end
where id = $1 and state in ('live', 'draining')
returning state, (select coalesce(max(s.version), 0) from shoal.setting s) as settings_version,
    (select max(m.version) from shoal.migration m) as schema_version,
    pg_catalog.set_config('synchronous_commit', 'off', true)

-- Workers. list_workers differs from SQLite in the arithmetic of times.

-- name: drain_worker
with drained as (
    update shoal.worker w set state = 'draining' where w.id = $1 and w.state in ('live', 'draining') returning w.id
)
insert into shoal.event (at, actor, action, subject, detail)
select shoal.clock(), $2, 'worker.draining', t.id, '{}' from drained t
returning id

-- name: stop_worker
select shoal.stop_worker($1::int)

-- name: declare_lost
select shoal.declare_lost($1::int[])

-- name: rescue
select * from shoal.rescue($1::int)

-- name: list_workers
select w.id, w.node, w.pid, w.version, w.code, w.state, w.started_at, w.lease_seconds, w.scope,
       w.report, extract(epoch from shoal.clock() - w.reported_at)::float8 as report_seconds,
       extract(epoch from shoal.clock() - w.heartbeat_at)::float8 as silent_seconds,
       coalesce(s.leased, 0) as leased
from shoal.worker w
left join (select x.worker, count(*) as leased from shoal.lease x group by x.worker) s on s.worker = w.no
where not $1 or w.state in ('live', 'draining')
order by w.no desc
limit 10000

-- name: page_workers
-- Of a window of the newest workers before $2 those of a node.
select w.no, w.id, w.node, w.pid, w.version, w.code, w.state, w.started_at, w.lease_seconds, w.scope,
       w.report, extract(epoch from shoal.clock() - w.reported_at)::float8 as report_seconds,
       extract(epoch from shoal.clock() - w.heartbeat_at)::float8 as silent_seconds,
       coalesce(s.leased, 0) as leased
from (select x.* from shoal.worker x where x.no < $2::bigint and (not $1::boolean or x.state in ('live', 'draining'))
      order by x.no desc limit $3) w
left join (select x.worker, count(*) as leased from shoal.lease x group by x.worker) s on s.worker = w.no
where $4::text is null or w.node = $4
order by w.no desc limit $5

-- name: list_nodes
select w.node, count(*) as workers,
       count(*) filter (where w.state = 'live' and w.heartbeat_at >= shoal.clock() - make_interval(secs => w.lease_seconds))
           as live,
       count(*) filter (where w.state = 'draining') as draining, coalesce(sum(s.leased), 0)::bigint as leased,
       array_agg(distinct w.version order by w.version) as versions, min(w.started_at) as started_at
from shoal.worker w
left join (select x.worker, count(*) as leased from shoal.lease x group by x.worker) s on s.worker = w.no
where w.state in ('live', 'draining')
group by w.node order by w.node limit 1000

-- name: held_items
select s.item as id, r.id as run_id, coalesce(i.url, i.key) as name
from unnest($1::bigint[]) as u(id)
join shoal.lease s on s.item = u.id
join shoal.run r on r.no = s.run
join shoal.item i on i.run = s.run and i.id = s.item
