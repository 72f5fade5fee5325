-- Claims and leases: calls of functions/30_claim.sql and functions/50_unlease.sql. open_queues differs from SQLite in
-- the count deltas and in lists, which are arrays here and JSON there.

-- name: open_queues
-- Only queues with ready items, by the counts. There are few deltas: they are folded every second. The last column is
-- the priority of the first item, looked up only where a queue has several priorities.
select k.id, r.no, r.id, s.name, k.partition, coalesce(s.max_attempts, r.max_attempts), k.priority_min, k.priority_max,
       case when k.priority_min = k.priority_max then k.priority_min
            else coalesce((select f.priorities[1] from shoal.first_priorities(
                               array[k.id], array[k.priority_min - 1], array[0::bigint], 1) f), k.priority_max) end
from (
    select x.queue
    from (select queue, ready from shoal.queue_count where ready <> 0
          union all select queue, ready from shoal.count_delta where ready <> 0) x
    group by x.queue having sum(x.ready) > 0
) c
join shoal.queue k on k.id = c.queue
join shoal.stage s on s.id = k.stage
join shoal.run r on r.no = k.run
where r.state = 'active'
  and ($1::text is null or r.scraper = $1)
  and ($2::text[] is null or r.id = any ($2))
  and ($3::text[] is null or s.name = any ($3))
  and ($4::text[] is null or k.partition = any ($4))

-- name: claim
select * from shoal.claim($1::int, $2::int, $3::int[], $4::int[], $5::bigint[], $6::int[], $7::int)

-- name: first_priorities
select f.priorities from shoal.first_priorities($1::int[], $2::int[], $3::bigint[], $4::int) f

-- name: recall_claim
select * from shoal.recall($1::int, $2::int)

-- name: promote_due
select shoal.promote_due($1::int, $2::boolean)

-- name: mark_started
select shoal.mark_started($1::bigint[], $2::int[])

-- name: unlease
select * from shoal.unlease($1::bigint[], $2::int[], $3::text, $4::text)

-- name: reconcile
select shoal.reconcile($1::int, $2::bigint[], $3::int[])
