-- The log of result changes and its cursors.

-- name: changes_after
-- Only what decides which changes are read; their items come from change_items.
select c.position, c.run, c.stage, c.records, c.replaced
from shoal.result_change c where c.position > $1 order by c.position limit $2

-- name: replaced_changes
select c.position, r.id as run_id, c.items
from shoal.result_change c join shoal.run r on r.no = c.run
where c.replaced and c.position > $1 and c.position <= $2 order by c.position limit $3

-- name: change_stage
select g.name as stage, r.no, r.id as run_id, r.scraper
from shoal.stage g join shoal.run r on r.no = g.run where g.id = $1 and r.state <> 'removed'

-- name: make_cursor
insert into shoal.result_cursor (name, position, created_at) values ($1, $2, shoal.clock())
on conflict (name) do nothing

-- name: fail_cursor
update shoal.result_cursor
set last_error = $2, failing_since = coalesce(failing_since, shoal.clock())
where name = $1 returning name

-- name: keep_cursor_state
-- Of several that want to, one succeeds.
update shoal.result_cursor set state = $6
where name = $1 and position = $2 and item = $3 and n = $4 and coalesce(state, '') = $5
returning name

-- name: reset_cursor
update shoal.result_cursor
set position = $2, item = 0, n = 0, moved_at = shoal.clock(), failing_since = null, last_error = null
where name = $1 returning name

-- name: drop_cursor
delete from shoal.result_cursor where name = $1 returning name

-- name: drop_dead_letters
delete from shoal.dead_letter where cursor = $1 returning cursor
