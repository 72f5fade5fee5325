-- Reads of locks and sessions. They differ from SQLite in times and in how the largest character is written.

-- name: get_lock
select e.* from shoal.lock e where e.name = $1

-- name: list_locks
select e.* from shoal.lock e where e.name >= $1 and e.name < $1 || U&'\+10FFFF' order by e.name desc limit $2

-- name: get_session
select s.version, extract(epoch from shoal.clock() - s.stored_at)::float8 as age, s.content
from shoal.session s where s.scraper = $1 and s.identity = $2 and s.content is not null

-- name: list_sessions
select s.scraper, s.identity, s.version, extract(epoch from shoal.clock() - s.stored_at)::float8 as age
from shoal.session s where ($1 = '' or s.scraper = $1) and s.content is not null order by s.scraper, s.identity limit $2
