-- name: stats
select cast(coalesce(sum(q.ready), 0) as bigint) as ready, cast(coalesce(sum(q.waiting), 0) as bigint) as waiting,
       cast(coalesce(sum(q.delayed), 0) as bigint) as delayed, cast(coalesce(sum(q.leased), 0) as bigint) as leased,
       cast(coalesce(sum(q.done), 0) as bigint) as done, cast(coalesce(sum(q.dead), 0) as bigint) as dead,
       cast(coalesce(sum(q.skipped), 0) as bigint) as skipped,
       cast(coalesce(sum(q.cancelled), 0) as bigint) as cancelled,
       cast(coalesce(sum(q.results), 0) as bigint) as results,
       cast(coalesce(sum(q.duplicates), 0) as bigint) as duplicates,
       cast(coalesce(sum(q.new_records), 0) as bigint) as new_records,
       cast(coalesce(sum(q.changed_records), 0) as bigint) as changed_records,
       cast(coalesce(sum(q.unchanged_records), 0) as bigint) as unchanged_records,
       cast(coalesce(sum(q.dropped_records), 0) as bigint) as dropped_records
from shoal.queue_depth q where q.run_id = $1 and (cast($2 as text) is null or q.stage = $2)

-- name: partitions
select q.stage, q.partition, q.ready, q.waiting, q.delayed, q.leased, q.done, q.dead, q.skipped, q.cancelled,
       q.results, q.duplicates, q.new_records, q.changed_records, q.unchanged_records, q.dropped_records
from shoal.queue_depth q where q.run_id = $1 order by q.stage, q.partition

-- name: author_counts
select c.name, cast(sum(c.number) as bigint) as number
from shoal.author_count c where c.run = $1 group by c.name order by c.name limit 200

-- name: stages_elsewhere
-- The stages of this name in other runs of the same scraper, the newest first; if asked, only of runs with the same
-- code, or only of runs that have finished.
select g.id from shoal.run r join shoal.stage g on g.run = r.no and g.name = $2
where r.scraper = (select o.scraper from shoal.run o where o.no = $1) and r.no <> $1 and r.state <> 'removed'
  and (not cast($3 as boolean) or r.code_version = (select o.code_version from shoal.run o where o.no = $1))
  and (not cast($4 as boolean) or r.state = 'finished')
order by r.no desc

-- name: records_elsewhere
-- The counts of queues are summed, not the records.
select cast(coalesce(sum(q.results), 0) as bigint)
from shoal.queue_depth q
where q.scraper = (select o.scraper from shoal.run o where o.id = $1) and q.run_id <> $1 and q.stage = $2

-- name: item_by_key
select i.id from shoal.item i where i.stage = $1 and i.key_hash = $2

-- name: results_window_end
-- The last row of a full window; no row when the window reaches the end.
select r.item, r.n from shoal.result r
where r.run = $1 and (r.item, r.n) > ($2, $3) order by r.item, r.n limit 1 offset cast($4 as int) - 1

-- name: results_by_record_key
-- The records whose key is unique in this run, by its hash.
select r.key_hash, r.item, r.n, g.name as stage, i.key, i.url, r.record, r.record_key
from shoal.result r
join shoal.item i on i.run = r.run and i.id = r.item
join shoal.stage g on g.id = i.stage
where r.key_space = $1 and r.key_hash > $2 and r.key_hash is not null order by r.key_hash limit $3

-- name: item_key_window_end
-- The last item of a full window; no row when the window reaches the end.
select i.key_hash from shoal.item i
where i.stage = $1 and i.key_hash >= $2 order by i.key_hash limit 1 offset cast($3 as int) - 1

-- name: run_holders
-- fresh: claimed after the worker's last report, so the report does not mention them.
select w.id as worker, count(*) as leased,
       count(*) filter (where w.reported_at is null or s.claimed_at >= w.reported_at) as fresh
from shoal.lease s join shoal.worker w on w.no = s.worker where s.run = $1 group by w.no order by leased desc, w.no

-- name: audit_lanes
-- The counters of a lane must equal the number of its rows.
with rows as (
    select lane, 1 as taken, 1 as unstarted, 0 as waiting from shoal.ready where lane is not null
    union all select lane, 1, case when started_at is null then 1 else 0 end, 0 from shoal.lease where lane is not null
    union all select lane, 1, 1, 0 from shoal.delayed where lane is not null and slotted
    union all select lane, 0, 0, 1 from shoal.waiting
),
actual as (
    select lane, sum(taken) as taken, sum(unstarted) as unstarted, sum(waiting) as waiting from rows group by lane
)
select 'lane ' || l.key || ': says ' || l.taken || '/' || l.unstarted || '/' || l.waiting || ', has '
       || coalesce(a.taken, 0) || '/' || coalesce(a.unstarted, 0) || '/' || coalesce(a.waiting, 0) as detail
from shoal.lane l left join actual a on a.lane = l.id
where (l.taken, l.unstarted, l.waiting)
      <> (coalesce(a.taken, 0), coalesce(a.unstarted, 0), coalesce(a.waiting, 0))
limit 20

-- name: audit_results
-- Law 2: only items that are done, or that died and left records (`on_error`), have results.
select 'result of ' || r.item || ' which has not ended' as detail
from shoal.result r
where not exists (select 1 from shoal.outcome o where o.run = r.run and o.item = r.item and o.state in ('done', 'dead'))
  and not exists (select 1 from shoal.run n where n.no = r.run and n.state = 'removed')
limit 20

-- name: failure_keys
select g.stage, g.outcome, g.host, g.shape from shoal.failure_group g where g.run = $1

-- name: events_window_end
-- The last event of a full window of all runs; no row when the window reaches the end.
select e.id from shoal.event e where e.id < $1 order by e.id desc limit 1 offset cast($2 as int) - 1

-- name: run_events_window_end
select e.id from shoal.event e where e.run = $3 and e.id < $1 order by e.run desc, e.id desc
limit 1 offset cast($2 as int) - 1

-- name: lanes_named
select l.id from shoal.lane l where l.run in (0, $1) and l.key = $2

-- name: workers_window_end
-- The last worker of a full window; no row when the window reaches the end.
select w.no from shoal.worker w where w.no < cast($1 as bigint) and (not $2 or w.state in ('live', 'draining'))
order by w.no desc limit 1 offset cast($3 as int) - 1
