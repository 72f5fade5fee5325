-- Queries that both backends share, written for PostgreSQL: see shoal.ledger.schema.load_queries. For SQLite `shoal.`
-- is dropped and $1 becomes ?1; clock() and seconds() are functions there too. JSON parameters have no cast: PostgreSQL
-- takes the type of the column, and a cast to json would make SQLite store a number.

-- name: run_stages
-- Stages in the order of declaration: the first is the default stage of new items.
select r.no, r.key_version, s.name, s.id as stage
from shoal.run r join shoal.stage s on s.run = r.no
where r.id = $1 and r.state <> 'removed'
order by s.id

-- name: run_id_of
select r.id from shoal.run r where r.no = $1 and r.state <> 'removed'

-- name: run_by_idempotency_key
select r.id from shoal.run r where r.idempotency_key = $1 and r.state <> 'removed'

-- name: latest_run
select r.id from shoal.run r where r.scraper = $1 and r.state <> 'removed' order by r.no desc limit 1

-- name: run_queues
select k.id, g.name as stage, k.partition from shoal.queue k join shoal.stage g on g.id = k.stage where k.run = $1

-- name: removed_runs
select r.no from shoal.run r where r.state = 'removed' order by r.no

-- name: recheck_lane_slots
-- Paused and idle runs may have got slots in shared lanes again, so they are asked to give them up once more.
update shoal.run set lane_work = 'release', lane_work_cursor = null
where lane_work is null and (state = 'paused' or (state = 'active' and idle))

-- name: put_note
insert into shoal.run_note (run, name, value, at) values ($1, $2, $3, shoal.clock())
on conflict (run, name) do update set value = excluded.value, at = excluded.at

-- name: put_first_note
insert into shoal.run_note (run, name, value, at) values ($1, $2, $3, shoal.clock())
on conflict (run, name) do nothing

-- name: get_note
select n.value from shoal.run_note n where n.run = $1 and n.name = $2

-- name: insert_event
insert into shoal.event (at, run, actor, action, subject, detail) values (shoal.clock(), $1, $2, $3, $4, $5)
