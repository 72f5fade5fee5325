-- Budgets: calls of functions/74_budgets.sql. The reads differ from SQLite's in functions and times.

-- name: exchange_budget
select * from shoal.exchange_budget(
    $1, $2, $3, $4::int, $5::int, $6::float8, $7::bigint, $8::float8, $9::bigint[], $10::int[], $11::int[],
    $12::bigint[], $13::float8[], $14::boolean, $15::float8, $16::int, $17::int, $18::float8, $19::float8, $20::float8)

-- name: list_budgets
select b.*, t.now, coalesce(sum(g.calls), 0) as taken, max(g.ends_at) as last_end,
       coalesce(sum(g.calls) filter (where not g.settled and g.expires_at > t.now), 0) as open_calls,
       sum(g.calls) filter (where g.granted_at > t.now - 300) as recent_calls,
       min(g.granted_at) filter (where g.granted_at > t.now - 300) as recent_from
from (select extract(epoch from shoal.clock())::float8 as now) t
cross join shoal.budget b
left join shoal.budget_grant g on g.budget = b.id and g.ends_at >= shoal.budget_since(b, t.now)
where b.pool = $1 and ($2::text is null or b.key = $2)
group by b.id, t.now order by b.key, b.resource

-- name: stopped_budgets
-- Read several times a second, so without the grants.
select b.key, b.resource, greatest(case when b.remaining = 0 then b.reset_at end, b.rests_until) - t.now as seconds
from (select extract(epoch from shoal.clock())::float8 as now) t
cross join shoal.budget b
where b.pool = $1 and (b.rests_until > t.now or (b.remaining = 0 and b.reset_at > t.now))
