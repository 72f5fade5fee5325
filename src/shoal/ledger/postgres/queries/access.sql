-- Tokens and browser sessions of `shoal serve`. SQLite has the same queries, without those that write an event.

-- name: add_token
with added as (
    insert into shoal.access_token (name, role, digest, created_at, created_by, expires_at)
    values ($1, $2, $3, shoal.clock(), $5, shoal.clock() + shoal.seconds($4))
    on conflict (name) do nothing
    returning *
), said as (
    insert into shoal.event (at, actor, action, subject, detail)
    select shoal.clock(), $5, 'token.added', a.name, json_build_object('role', a.role) from added a
)
select a.id, a.name, a.role, a.created_at, a.created_by, a.expires_at, a.used_at, false as expired from added a

-- name: list_tokens
select t.id, t.name, t.role, t.created_at, t.created_by, t.expires_at, t.used_at,
       coalesce(t.expires_at <= shoal.clock(), false) as expired
from shoal.access_token t order by t.name limit 1000

-- name: has_token
select exists (select 1 from shoal.access_token t where t.expires_at is null or t.expires_at > shoal.clock())

-- name: remove_token
with removed as (
    delete from shoal.access_token t where t.name = $1 returning t.name
), said as (
    insert into shoal.event (at, actor, action, subject, detail)
    select shoal.clock(), $2, 'token.removed', r.name, '{}' from removed r
)
select r.name from removed r

-- name: find_token
select t.id as token_id, t.name, t.role, t.expires_at, t.digest,
       extract(epoch from shoal.clock() - t.used_at)::float8 as idle_seconds
from shoal.access_token t
where t.digest = $1 and (t.expires_at is null or t.expires_at > shoal.clock())

-- name: start_session
with token as (
    select t.* from shoal.access_token t
    where t.id = $1 and (t.expires_at is null or t.expires_at > shoal.clock())
    for key share
), started as (
    insert into shoal.access_session (digest, token, idle, created_at, used_at, expires_at)
    select $2, t.id, shoal.seconds($4), shoal.clock(), shoal.clock(),
           least(shoal.clock() + shoal.seconds($3), coalesce(t.expires_at, 'infinity'))
    from token t
    returning *
), said as (
    insert into shoal.event (at, actor, action, subject, detail)
    select shoal.clock(), $5, 'session.started', t.name, '{}' from token t
)
select t.id as token_id, t.name, t.role, s.expires_at, 0::float8 as idle_seconds
from token t join started s on s.token = t.id

-- name: find_session
select t.id as token_id, t.name, t.role, s.expires_at, s.digest,
       extract(epoch from shoal.clock() - s.used_at)::float8 as idle_seconds
from shoal.access_session s join shoal.access_token t on t.id = s.token
where s.digest = $1 and s.expires_at > shoal.clock() and s.used_at + s.idle > shoal.clock()
  and (t.expires_at is null or t.expires_at > shoal.clock())

-- name: end_session
with ended as (
    delete from shoal.access_session s where s.digest = $1 returning s.token
), said as (
    insert into shoal.event (at, actor, action, subject, detail)
    select shoal.clock(), $2, 'session.ended', t.name, '{}'
    from ended e join shoal.access_token t on t.id = e.token
)
select e.token from ended e

-- name: tidy_sessions
delete from shoal.access_session where digest in (
    select s.digest from shoal.access_session s where s.expires_at <= shoal.clock() limit 1000
)
