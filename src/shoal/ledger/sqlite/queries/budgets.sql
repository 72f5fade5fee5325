-- Budgets. On PostgreSQL the exchange is a function (functions/74_budgets.sql). Times are seconds since 1970.

-- name: make_budget
insert into budget (pool, key, resource) values (?1, ?2, ?3) on conflict (pool, key, resource) do nothing

-- name: find_budget
select b.*, o.rests_until as exit_rests_until
from budget b left join budget o on o.pool = b.pool and o.key = b.key and o.resource = '' and b.resource <> ''
where b.pool = ?1 and b.key = ?2 and b.resource = ?3

-- name: set_budget
update budget
set calls = ?2, seconds = ?3, site_limit = ?4, remaining = ?5, sent_at = ?6, reset_from = ?7, reset_at = ?8,
    rests_until = ?9, used_at = ?10
where id = ?1

-- name: shrink_grant
update budget_grant set calls = min(calls, ?3) where id = ?2 and budget = ?1 and not settled

-- name: settle_grant
update budget_grant set calls = min(calls, ?3), ends_at = ?4, settled = 1 where id = ?2 and budget = ?1 and not settled

-- name: merge_target
-- A grant that was settled a short time before this one, so that a window has a bounded number of rows.
select g.id from budget_grant g
where g.budget = ?1 and g.id <> ?2 and g.settled and g.granted_at >= ?3 order by g.granted_at limit 1

-- name: merge_grant
update budget_grant set calls = calls + (select o.calls from budget_grant o where o.id = ?2), ends_at = max(ends_at, ?3)
where id = ?1

-- name: start_merging
-- Of a settled grant, granted_at is when the first grant in it was settled.
update budget_grant set granted_at = ?2 where id = ?1

-- name: remove_grant
delete from budget_grant where id = ?1

-- name: remove_ended_grants
delete from budget_grant where budget = ?1 and (ends_at < ?2 or calls = 0)

-- name: find_grant
select g.calls, g.expires_at from budget_grant g where g.id = ?1

-- name: budget_taken
select coalesce(sum(g.calls), 0) as taken, min(g.ends_at) as first_end,
       min(case when not g.settled then g.ends_at end) as first_open_end
from budget_grant g where g.budget = ?1

-- name: insert_grant
insert into budget_grant (id, budget, calls, granted_at, expires_at, ends_at) values (?1, ?2, ?3, ?4, ?5, ?6)

-- name: list_budgets
select b.*, b.now, coalesce(sum(g.calls), 0) as taken, max(g.ends_at) as last_end,
       coalesce(sum(case when not g.settled and g.expires_at > b.now then g.calls end), 0) as open_calls,
       sum(case when g.granted_at > b.now - 300 then g.calls end) as recent_calls,
       min(case when g.granted_at > b.now - 300 then g.granted_at end) as recent_from
from (select b.*, clock() / 1e6 as now,
             case when b.remaining is not null and b.reset_at > clock() / 1e6 then b.sent_at
                  else max(coalesce(b.reset_from, 0), clock() / 1e6 - b.seconds) end as since
      from budget b where b.pool = ?1 and (?2 is null or b.key = ?2)) b
left join budget_grant g on g.budget = b.id and g.ends_at >= b.since
group by b.id order by b.key, b.resource

-- name: stopped_budgets
-- Read several times a second, so without the grants.
select b.key, b.resource,
       max(case when b.remaining = 0 then coalesce(b.reset_at, 0) else 0 end, coalesce(b.rests_until, 0)) - b.now as seconds
from (select b.*, clock() / 1e6 as now from budget b where b.pool = ?1) b
where b.rests_until > b.now or (b.remaining = 0 and b.reset_at > b.now)

-- name: tidy_grants
delete from budget_grant where id in (
    select g.id from budget b join budget_grant g on g.budget = b.id
    where g.ends_at < case when b.remaining is not null and b.reset_at > ?1 then b.sent_at
                            else max(coalesce(b.reset_from, 0), ?1 - b.seconds) end
    limit ?2)

-- name: tidy_budgets
delete from budget where used_at < ?1 and not exists (select 1 from budget_grant g where g.budget = budget.id)
