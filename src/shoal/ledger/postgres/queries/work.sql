-- name: run_facts
-- Stages in the order they were declared: the first is where items go when nobody says otherwise.
select r.no, r.key_version, s.name, s.id as stage
from shoal.run r join shoal.stage s on s.run = r.no
where r.id = $1 and r.state <> 'removed'
order by s.id

-- name: run_id_of
select r.id from shoal.run r where r.no = $1 and r.state <> 'removed'

-- name: make_queues
-- Makes what is missing and widens the range of priorities of what is there.
insert into shoal.queue as k (run, stage, partition, priority_min, priority_max)
select s.run, u.stage, u.partition, u.low, u.high
from unnest($1::int[], $2::text[], $3::int[], $4::int[]) as u(stage, partition, low, high)
join shoal.stage s on s.id = u.stage
order by u.stage, u.partition
on conflict (stage, partition) do update
set priority_min = least(k.priority_min, excluded.priority_min),
    priority_max = greatest(k.priority_max, excluded.priority_max)
where excluded.priority_min < k.priority_min or excluded.priority_max > k.priority_max

-- name: find_queues
select k.id, k.stage, k.partition, k.priority_min, k.priority_max
from unnest($1::int[], $2::text[]) as u(stage, partition)
join shoal.queue k on k.stage = u.stage and k.partition = u.partition

-- name: enqueue
select * from shoal.enqueue($1::uuid, $2::int, $3::int[], $4::bytea[], $5::text[], $6::text[], $7::json[], $8::int[],
    $9::int[], $10::float8[], $11::int[], $12::text[], $13::int[])

-- name: open_queues
-- Only queues that have something, by the counts. Deltas are few: they are folded every second. The last column is the
-- priority at the head, looked up only where it can be one of several.
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

-- name: recall
select * from shoal.recall($1::int, $2::int)

-- name: promote_due
select shoal.promote_due($1::int, $2::boolean)

-- name: started
select shoal.started($1::bigint[], $2::int[])

-- name: unlease
select * from shoal.unlease($1::bigint[], $2::int[], $3::text, $4::text)

-- name: reconcile
select shoal.reconcile($1::int, $2::bigint[], $3::int[])

-- name: commit
select * from shoal.commit($1::int, $2::bigint[], $3::int[], $4::int[], $5::text[], $6::text[], $7::float8[],
    $8::text[], $9::real[], $10::json[], $11::bigint[], $12::int[], $13::json[],
    $14::bigint[], $15::int[], $16::bytea[], $17::text[], $18::text[], $19::json[], $20::int[], $21::int[],
    $22::float8[], $23::int[], $24::text[], $25::int[])

-- name: register
-- Asking again changes nothing: ids have a random part, so the same id is the same worker.
insert into shoal.worker (id, node, pid, version, code, lease_seconds, scope, started_at, beat_at)
values ($1, $2, $3, $4, $5, $6, $7::json, shoal.clock(), shoal.clock())
on conflict (id) do nothing

-- name: worker_no
select w.no from shoal.worker w where w.id = $1

-- name: beat
update shoal.worker w set beat_at = shoal.clock(), report = coalesce($2::json, w.report),
    reported_at = case when $2::json is null then w.reported_at else shoal.clock() end
where w.id = $1 and w.state in ('live', 'draining')
returning w.state, (select coalesce(max(s.version), 0) from shoal.setting s) as settings_version

-- name: drain
with told as (
    update shoal.worker w set state = 'draining' where w.id = $1 and w.state in ('live', 'draining') returning w.id
)
insert into shoal.event (at, actor, action, subject, detail)
select shoal.clock(), $2, 'worker.draining', t.id, '{}' from told t
returning id

-- name: stop_worker
select shoal.stop_worker($1::int)

-- name: declare_lost
select shoal.declare_lost($1::int[])

-- name: rescue
select * from shoal.rescue($1::int)

-- name: list_workers
select w.id, w.node, w.pid, w.version, w.code, w.state, w.started_at, w.lease_seconds, w.scope,
       w.report, extract(epoch from shoal.clock() - w.reported_at)::float8 as report_seconds,
       extract(epoch from shoal.clock() - w.beat_at)::float8 as silent_seconds,
       coalesce(s.leased, 0) as leased
from shoal.worker w
left join (select x.worker, count(*) as leased from shoal.lease x group by x.worker) s on s.worker = w.no
where not $1 or w.state in ('live', 'draining')
order by w.no desc
limit 10000
