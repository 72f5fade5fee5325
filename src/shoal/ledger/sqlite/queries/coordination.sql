-- name: get_lock
select e.name, e.taken_by, e.taken_at as "taken_at [moment]", e.until as "until [moment]",
       e.finished_at as "finished_at [moment]", e.value
from lock e where e.name = ?1

-- name: list_locks
select e.name, e.taken_by, e.taken_at as "taken_at [moment]", e.until as "until [moment]",
       e.finished_at as "finished_at [moment]", e.value
from lock e where e.name >= ?1 and e.name < ?1 || char(1114111)
order by e.name desc limit ?2
