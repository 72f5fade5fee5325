-- name: register
-- Registering twice has no effect: an id has a random part, so the same id is the same worker.
insert into shoal.worker (id, node, pid, version, code, lease_seconds, scope, started_at, heartbeat_at)
values ($1, $2, $3, $4, $5, $6, $7, shoal.clock(), shoal.clock())
on conflict (id) do nothing

-- name: worker_no
select w.no from shoal.worker w where w.id = $1

-- name: register_worker_pool
insert into shoal.worker_pool (id, scraper, run_id, node, pid, process, logs, started_by, wanted, started_at, seen_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, shoal.clock(), shoal.clock())
on conflict (id) do nothing

-- name: forget_worker_pools
delete from shoal.worker_pool where seen_at < shoal.clock() - shoal.seconds($1)

-- name: report_worker_pool
update shoal.worker_pool set seen_at = shoal.clock(), workers = $2, wanted = $3, stopping = $4
where id = $1 and ended_at is null
returning id

-- name: end_worker_pool
update shoal.worker_pool set ended_at = shoal.clock(), workers = 0, why = $2
where id = $1 and ended_at is null
returning id

-- name: acquire_lock
-- Returns a row when the lock was free, expired, or already the caller's.
insert into shoal.lock as k (name, owner, acquired_at, expires_at)
values ($1, $2, shoal.clock(), shoal.clock() + shoal.seconds($3))
on conflict (name) do update
set owner = excluded.owner, acquired_at = excluded.acquired_at, expires_at = excluded.expires_at
where k.finished_at is null
    and (k.expires_at <= shoal.clock() or k.expires_at <= k.acquired_at or k.owner = excluded.owner)
returning name

-- name: renew_lock
update shoal.lock set expires_at = shoal.clock() + shoal.seconds($3)
where name = $1 and owner = $2 and finished_at is null
returning name

-- name: complete_lock
-- Succeeds again for the same owner, whose first answer may have been lost.
update shoal.lock set finished_at = coalesce(finished_at, shoal.clock()), value = $3
where name = $1 and owner = $2
returning name

-- name: release_lock
-- It expires when it was taken, so that it is free whatever the clock says later.
update shoal.lock set expires_at = acquired_at where name = $1 and owner = $2 and finished_at is null
returning name

-- name: put_session
-- Returns a row when there is no session, or only a removed one.
insert into shoal.session as s (scraper, identity, version, stored_at, content)
values ($1, $2, 1, shoal.clock(), $3)
on conflict (scraper, identity) do update
set version = s.version + 1, stored_at = excluded.stored_at, content = excluded.content
where s.content is null
returning version

-- name: replace_session
update shoal.session set version = version + 1, stored_at = shoal.clock(), content = $3
where scraper = $1 and identity = $2 and version = $4 and content is not null
returning version

-- name: remove_session
update shoal.session set version = version + 1, content = null
where scraper = $1 and identity = $2 and content is not null
returning version

-- name: put_setting
insert into shoal.setting (scope, value, set_by, set_at) values ($1, $2, $3, shoal.clock()) returning version

-- name: get_setting
select s.version, s.value from shoal.setting s where s.scope = $1 order by s.version desc limit 1
