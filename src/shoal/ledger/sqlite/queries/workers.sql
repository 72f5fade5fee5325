-- Workers. list_workers differs from PostgreSQL in the arithmetic of times.

-- name: drain_worker
update worker set state = 'draining' where id = ?1 and state in ('live', 'draining')

-- name: stop_worker
update worker set state = 'stopped', ended_at = ?2 where no = ?1 and state in ('live', 'draining')

-- name: list_workers
select w.id, w.node, w.pid, w.version, w.code, w.state, w.started_at as "started_at [moment]", w.lease_seconds, w.scope,
       w.report, (clock() - w.reported_at) / 1e6 as report_seconds,
       (clock() - w.heartbeat_at) / 1e6 as silent_seconds,
       coalesce(s.leased, 0) as leased
from worker w
left join (select worker, count(*) as leased from lease group by worker) s on s.worker = w.no
where not ?1 or w.state in ('live', 'draining')
order by w.no desc
limit 10000
