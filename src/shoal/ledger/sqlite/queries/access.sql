-- Tokens and browser sessions of `shoal serve`. PostgreSQL has the same queries; its writes store their event themselves.

-- name: add_token
insert into access_token (name, role, digest, created_at, created_by, expires_at)
values (?1, ?2, ?3, clock(), ?5, case when ?4 is not null then clock() + seconds(?4) end)
on conflict (name) do nothing
returning id, name, role, created_at as "created_at [moment]", created_by, expires_at as "expires_at [moment]",
          used_at as "used_at [moment]", 0 as expired

-- name: list_tokens
select t.id, t.name, t.role, t.created_at as "created_at [moment]", t.created_by, t.expires_at as "expires_at [moment]",
       t.used_at as "used_at [moment]", coalesce(t.expires_at <= clock(), 0) as expired
from access_token t order by t.name limit 1000

-- name: has_token
select exists (select 1 from access_token t where t.expires_at is null or t.expires_at > clock())

-- name: remove_token_sessions
delete from access_session where token in (select t.id from access_token t where t.name = ?1)

-- name: remove_token
delete from access_token where name = ?1

-- name: find_token
select t.id as token_id, t.name, t.role, t.expires_at as "expires_at [moment]", t.digest,
       (clock() - t.used_at) / 1e6 as idle_seconds
from access_token t where t.digest = ?1 and (t.expires_at is null or t.expires_at > clock())

-- name: start_session
insert into access_session (digest, token, idle, created_at, used_at, expires_at)
select ?2, t.id, seconds(?4), clock(), clock(), min(clock() + seconds(?3), coalesce(t.expires_at, 9223372036854775807))
from access_token t where t.id = ?1 and (t.expires_at is null or t.expires_at > clock())

-- name: find_session
select t.id as token_id, t.name, t.role, s.expires_at as "expires_at [moment]", s.digest,
       (clock() - s.used_at) / 1e6 as idle_seconds
from access_session s join access_token t on t.id = s.token
where s.digest = ?1 and s.expires_at > clock() and s.used_at + s.idle > clock()
  and (t.expires_at is null or t.expires_at > clock())

-- name: session_token
select t.name from access_session s join access_token t on t.id = s.token where s.digest = ?1

-- name: end_session
delete from access_session where digest = ?1

-- name: tidy_sessions
delete from access_session where digest in (
    select s.digest from access_session s where s.expires_at <= clock() limit 1000
)
