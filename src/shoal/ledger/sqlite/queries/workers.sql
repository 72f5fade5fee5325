-- name: register
-- Asking again changes nothing: ids have a random part, so the same id is the same worker.
insert into worker (id, node, pid, version, code, lease_seconds, scope, started_at, beat_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, shoal_now(), shoal_now())
on conflict (id) do nothing

-- name: worker_no
select w.no from worker w where w.id = ?1

-- name: beat
update worker set beat_at = shoal_now(), report = coalesce(?2, report),
    reported_at = case when ?2 is null then reported_at else shoal_now() end
where id = ?1 and state in ('live', 'draining')
returning state, (select coalesce(max(s.version), 0) from setting s) as settings_version

-- name: drain_worker
update worker set state = 'draining' where id = ?1 and state in ('live', 'draining')

-- name: stop_worker
update worker set state = 'stopped', ended_at = ?2 where no = ?1 and state in ('live', 'draining')

-- name: list_workers
select w.id, w.node, w.pid, w.version, w.code, w.state, w.started_at as "started_at [moment]", w.lease_seconds, w.scope,
       w.report, (shoal_now() - w.reported_at) / 1e6 as report_seconds,
       (shoal_now() - w.beat_at) / 1e6 as silent_seconds,
       coalesce(s.leased, 0) as leased
from worker w
left join (select worker, count(*) as leased from lease group by worker) s on s.worker = w.no
where not ?1 or w.state in ('live', 'draining')
order by w.no desc
limit 10000
