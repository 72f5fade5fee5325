-- name: heartbeat
-- The schema's version tells a worker of an older release that the ledger was upgraded under it.
update worker set heartbeat_at = clock(), report = coalesce(?2, report),
    reported_at = case when ?2 is null then reported_at else clock() end
where id = ?1 and state in ('live', 'draining')
returning state, (select coalesce(max(s.version), 0) from setting s) as settings_version,
    (select user_version from pragma_user_version) as schema_version

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

-- name: page_workers
-- Of a window of the newest workers before ?2 those of a node.
select w.no, w.id, w.node, w.pid, w.version, w.code, w.state, w.started_at as "started_at [moment]", w.lease_seconds,
       w.scope, w.report, (clock() - w.reported_at) / 1e6 as report_seconds,
       (clock() - w.heartbeat_at) / 1e6 as silent_seconds,
       coalesce(s.leased, 0) as leased
from (select x.* from worker x where x.no < ?2 and (not ?1 or x.state in ('live', 'draining'))
      order by x.no desc limit ?3) w
left join (select worker, count(*) as leased from lease group by worker) s on s.worker = w.no
where ?4 is null or w.node = ?4
order by w.no desc limit ?5

-- name: list_nodes
select w.node, count(*) as workers,
       sum(w.state = 'live' and w.heartbeat_at >= clock() - cast(1e6 * w.lease_seconds as integer)) as live,
       sum(w.state = 'draining') as draining, coalesce(sum(s.leased), 0) as leased,
       json_group_array(distinct w.version) as versions, min(w.started_at) as "started_at [moment]"
from worker w
left join (select worker, count(*) as leased from lease group by worker) s on s.worker = w.no
where w.state in ('live', 'draining')
group by w.node order by w.node limit 1000

-- name: held_items
select s.item as id, r.id as run_id, coalesce(i.url, i.key) as name
from json_each(?1) u
cross join lease s on s.item = u.value
cross join run r on r.no = s.run
cross join item i on i.id = s.item
