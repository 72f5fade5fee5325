-- Runs. get_run and list_runs differ from SQLite in the list of stages, an array here and a JSON text there.

-- name: create_run
select shoal.create_run($1::uuid, $2, $3::json, $4, $5, $6::int, $7::int, $8::int, $9::text[], $10::int[], $11::int[],
    $12::real[], $13::real[], $14::boolean[], $15::boolean[], $16::int[])

-- name: get_run
select r.*, array(select s.name from shoal.stage s where s.run = r.no order by s.id) as stages
from shoal.run r where r.id = $1 and r.state <> 'removed'

-- name: list_runs
select r.*, array(select s.name from shoal.stage s where s.run = r.no order by s.id) as stages
from shoal.run r
where r.state <> 'removed' and ($1::text is null or r.scraper = $1) and ($2::int is null or r.no < $2)
order by r.no desc limit $3

-- name: seal_run
with sealed as (
    update shoal.run r set sealed = true where r.no = $1 and not r.sealed returning r.no, r.id
)
insert into shoal.event (at, run, actor, action, subject, detail)
select shoal.clock(), s.no, $2, 'run.sealed', s.id, '{}' from sealed s

-- name: set_run_state
select shoal.set_run_state($1::int, $2, $3::text[], $4, $5)
