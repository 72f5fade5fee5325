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
