-- Reads of locks and sessions. They differ from PostgreSQL in times and in how the largest character is written.

-- name: get_lock
select e.name, e.owner, e.acquired_at as "acquired_at [moment]", e.expires_at as "expires_at [moment]",
       e.finished_at as "finished_at [moment]", e.value
from lock e where e.name = ?1

-- name: list_locks
select e.name, e.owner, e.acquired_at as "acquired_at [moment]", e.expires_at as "expires_at [moment]",
       e.finished_at as "finished_at [moment]", e.value
from lock e where e.name >= ?1 and e.name < ?1 || char(1114111)
order by e.name desc limit ?2

-- name: get_session
select s.version, (clock() - s.stored_at) / 1e6 as age, s.content
from session s where s.scraper = ?1 and s.identity = ?2 and s.content is not null

-- name: list_sessions
select s.scraper, s.identity, s.version, (clock() - s.stored_at) / 1e6 as age
from session s where (?1 = '' or s.scraper = ?1) and s.content is not null order by s.scraper, s.identity limit ?2
