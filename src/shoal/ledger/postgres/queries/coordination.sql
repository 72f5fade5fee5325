-- Reads of locks. They differ from SQLite in times and in how the largest character is written.

-- name: get_lock
select e.* from shoal.lock e where e.name = $1

-- name: list_locks
select e.* from shoal.lock e where e.name >= $1 and e.name < $1 || U&'\+10FFFF' order by e.name desc limit $2
