-- Reads of locks, pools and sessions. They differ from SQLite in times and in how the largest character is written.

-- name: get_lock
select e.* from shoal.lock e where e.name = $1

-- name: list_settings
with recursive scopes (scope) as (
    select min(s.scope) from shoal.setting s
    union all
    select (select min(s.scope) from shoal.setting s where s.scope > c.scope) from scopes c where c.scope is not null
)
select s.scope, s.version, s.value, s.set_by, s.set_at
from (select scope from scopes where scope is not null order by scope limit $1) c
cross join lateral (
    select e.* from shoal.setting e where e.scope = c.scope order by e.version desc limit 1
) s
order by s.scope

-- name: list_locks
select e.* from shoal.lock e where e.name >= $1 and e.name < $1 || U&'\+10FFFF' order by e.name desc limit $2

-- name: get_worker_pool
select p.id, p.scraper, p.run_id, p.node, p.pid, p.process, p.logs, p.started_by as by, p.workers, p.wanted,
       p.stopping, p.why, p.started_at, p.ended_at,
       extract(epoch from shoal.clock() - p.seen_at)::float8 as silent_seconds
from shoal.worker_pool p where p.id = $1

-- name: list_worker_pools
select p.id, p.scraper, p.run_id, p.node, p.pid, p.process, p.logs, p.started_by as by, p.workers, p.wanted,
       p.stopping, p.why, p.started_at, p.ended_at,
       extract(epoch from shoal.clock() - p.seen_at)::float8 as silent_seconds
from shoal.worker_pool p
where ($1 = '' or p.scraper = $1) and ($2 = 1 or p.ended_at is null)
order by p.started_at desc, p.id limit $3

-- name: get_session
select s.version, extract(epoch from shoal.clock() - s.stored_at)::float8 as age, s.content
from shoal.session s where s.scraper = $1 and s.identity = $2 and s.content is not null

-- name: list_sessions
select s.scraper, s.identity, s.version, extract(epoch from shoal.clock() - s.stored_at)::float8 as age
from shoal.session s where ($1 = '' or s.scraper = $1) and s.content is not null order by s.scraper, s.identity limit $2
