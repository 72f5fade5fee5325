-- Runs. On PostgreSQL creating a run and changing its state are functions, which lock the run; here the write
-- transaction does.

-- name: insert_run
insert into run (id, scraper, settings, code_version, key_version, max_attempts, max_rescues, created_at, changed_at,
                 idempotency_key)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9)
on conflict (id) do nothing
returning no

-- name: insert_stages
-- [name, max_attempts, limit, delay_min, delay_max, ordered, shared, loopback_limit], in the order they were declared.
insert into stage (run, name, max_attempts, lane_limit, lane_delay_min, lane_delay_max, lane_ordered, lane_shared,
                   lane_loopback_limit)
select ?1, j.value ->> 0, j.value ->> 1, j.value ->> 2, j.value ->> 3, j.value ->> 4, j.value ->> 5, j.value ->> 6,
       j.value ->> 7
from json_each(?2) j

-- name: run_state
select r.state from run r where r.no = ?1

-- name: get_run
select r.no, r.id, r.scraper, r.state, r.sealed, r.settings, r.code_version, r.key_version, r.max_attempts,
       r.max_rescues, r.idempotency_key, r.created_at as "created_at [moment]", r.finished_at as "finished_at [moment]",
       (select json_group_array(s.name) from (select name from stage where run = r.no order by id) s) as stages
from run r where r.id = ?1 and r.state <> 'removed'

-- name: list_runs
select r.no, r.id, r.scraper, r.state, r.sealed, r.settings, r.code_version, r.key_version, r.max_attempts,
       r.max_rescues, r.idempotency_key, r.created_at as "created_at [moment]", r.finished_at as "finished_at [moment]",
       (select json_group_array(s.name) from (select name from stage where run = r.no order by id) s) as stages
from run r
where r.state <> 'removed' and (?1 is null or r.scraper = ?1) and (?2 is null or r.no < ?2)
order by r.no desc limit ?3

-- name: seal_run
update run set sealed = 1 where no = ?1 and not sealed

-- name: change_run_state
-- A run that had ended accepts items again when it becomes active, until it is sealed again.
update run
set state = ?2, changed_at = ?3, sealed = sealed and not (?2 = 'active' and state in ('finished', 'cancelled')),
    finished_at = case when ?2 in ('finished', 'cancelled') then ?3 end
where no = ?1
