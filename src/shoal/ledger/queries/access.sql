-- name: use_token
-- At most one write a minute.
update shoal.access_token set used_at = shoal.clock()
where id = $1 and (used_at is null or used_at <= shoal.clock() - shoal.seconds(60))

-- name: use_session
update shoal.access_session set used_at = shoal.clock()
where digest = $1 and used_at <= shoal.clock() - shoal.seconds(60)
