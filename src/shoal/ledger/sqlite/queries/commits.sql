-- Commits. On PostgreSQL this is one function (functions/40_commit.sql).

-- name: commit_take_done
-- The usual batch, all done, without error or detail: {"item:epoch": seconds}. Only valid leases are found.
insert into temp.ended (item, lane, run, queue, priority, epoch, tries, rescues, claimed_at, started_at,
                        kind, outcome, delay, error, seconds, detail, holds, next_at, delay_max)
select s.item, s.lane, s.run, s.queue, s.priority, s.epoch, s.tries, s.rescues, s.claimed_at, s.started_at,
       'done', 'done', 0, null, j.value, null, 0, null, null
from json_each(?1) j
cross join lease s
  on s.item = cast(j.key as integer) and s.epoch = cast(substr(j.key, instr(j.key, ':') + 1) as integer)

-- name: commit_take
-- Any batch: [item, epoch, kind, outcome, delay, error, seconds, detail].
-- holds: the first item of an ordered lane keeps its slot while it waits for a retry.
insert into temp.ended (item, lane, run, queue, priority, epoch, tries, rescues, claimed_at, started_at,
                        kind, outcome, delay, error, seconds, detail, holds, next_at, delay_max)
select s.item, s.lane, s.run, s.queue, s.priority, s.epoch, s.tries, s.rescues, s.claimed_at, s.started_at,
       j.value ->> 2, j.value ->> 3, j.value ->> 4, j.value ->> 5, j.value ->> 6, j.value ->> 7,
       coalesce(l.ordered, 0) and j.value ->> 2 in ('retry', 'throttled', 'put_off', 'egress'), l.next_at, l.delay_max
from json_each(?1) j
cross join lease s on s.item = j.value ->> 0 and s.epoch = j.value ->> 1
left join lane l on l.id = s.lane

-- name: commit_leave
delete from lease where item in (select e.item from temp.ended e)

-- name: commit_outcomes
insert into outcome (item, claimed_at, ended_at, run, queue, epoch, worker, seconds, tries, rescues, state, outcome,
                     error, detail)
select e.item, e.claimed_at, ?1, e.run, e.queue, e.epoch, ?2, e.seconds, e.tries + 1, e.rescues, e.kind, e.outcome,
       e.error, e.detail
from temp.ended e where e.kind in ('done', 'dead', 'skipped')

-- name: commit_attempts
insert into attempt (item, epoch, claimed_at, ended_at, run, worker, seconds, outcome, error, detail)
select e.item, e.epoch, e.claimed_at, ?1, e.run, ?2, e.seconds, e.outcome, e.error, e.detail
from temp.ended e where e.kind in ('retry', 'throttled', 'put_off', 'egress')

-- name: commit_delayed
insert into delayed (item, lane, due_at, since, run, queue, priority, epoch, tries, rescues, slotted, reason)
select e.item, e.lane,
       max(?1 + e.delay, case when e.holds then coalesce(e.next_at, 0) else 0 end,
           case when e.holds and e.started_at is null then ?1 + cast(1e6 * e.delay_max as integer) else 0 end),
       ?1, e.run, e.queue, e.priority, e.epoch, e.tries + (e.kind = 'retry'), e.rescues, e.holds,
       case e.kind when 'put_off' then 'throttled' else e.kind end
from temp.ended e
where e.kind in ('retry', 'put_off', 'egress') or (e.kind = 'throttled' and (e.lane is null or e.holds))

-- name: commit_waiting
insert into waiting (lane, run, priority, item, since, queue, epoch, tries, rescues)
select e.lane, e.run, e.priority, e.item, ?1, e.queue, e.epoch, e.tries, e.rescues
from temp.ended e where e.kind = 'throttled' and e.lane is not null and not e.holds

-- name: commit_results
-- {"item:n": record}. Only records of ended items with a valid lease are stored; dead ones may have records, too.
insert into result (run, item, n, record)
select e.run, e.item, cast(substr(j.key, instr(j.key, ':') + 1) as integer), j.value
from json_each(?1) j cross join temp.ended e on e.item = cast(j.key as integer)
where e.kind in ('done', 'dead')

-- name: commit_result_counts
-- {"item": number of records}: the records themselves are parsed once only.
update queue_count as c set results = c.results + n.n
from (select e.queue, sum(j.value) as n from json_each(?1) j cross join temp.ended e on e.item = cast(j.key as integer)
      where e.kind in ('done', 'dead') group by e.queue) n
where c.queue = n.queue

-- name: commit_result_minutes
update minute_count as m set results = m.results + n.n
from (select e.queue, sum(j.value) as n from json_each(?1) j cross join temp.ended e on e.item = cast(j.key as integer)
      where e.kind in ('done', 'dead') group by e.queue) n
where m.minute = ?2 - ?2 % 60000000 and m.queue = n.queue and m.worker = ?3

-- name: commit_changes
-- The sort is for the order within json_group_array.
insert into result_change (run, stage, at, records, items)
select o.run, o.stage, ?2, sum(o.records), json_group_array(o.item)
from (
    select e.run, k.stage, e.item, j.value as records
    from json_each(?1) j
    cross join temp.ended e on e.item = cast(j.key as integer)
    cross join queue k on k.id = e.queue
    where e.kind in ('done', 'dead') order by e.run, k.stage, e.item
) o
group by o.run, o.stage

-- name: commit_keyed
-- Records with a key, [item, n, space, key, replaces, record], and their hashes as one blob of 16 bytes each. Those of
-- ended items with a valid lease are compared with the stored ones, in their order, as if each came in a commit of its own.
-- The records of a run that is being removed count as gone: their place is taken in any case, as is that of an item's own
-- older record, which only a replay finds.
insert into temp.keyed (space, hash, item, n, run, queue, key, record, old_row, old_queue, is_gone, verdict, stored)
with input as (
    select j.value ->> 2 as space, substr(?2, 1 + 16 * j.key, 16) as hash, j.key as ord, e.item, j.value ->> 1 as n,
           e.run, e.queue, j.value ->> 3 as key, j.value ->> 4 as replaces, j.value ->> 5 as record
    from json_each(?1) j cross join temp.ended e on e.item = j.value ->> 0 where e.kind in ('done', 'dead')
),
placed as (
    select i.*, lag(i.record) over w as before, row_number() over w as place,
           i.ord = max(i.ord) over (partition by i.space, i.hash) as is_last
    from input i window w as (partition by i.space, i.hash order by i.ord)
),
found as (
    select p.*, x.rowid as old_row, x.record as old_record, o.queue as old_queue,
           coalesce(g.state, 'removed') = 'removed' as is_gone, coalesce(x.item = p.item, 0) as is_own
    from placed p
    left join result x on x.key_space = p.space and x.key_hash = p.hash and x.key_hash is not null
    left join item o on o.id = x.item
    left join run g on g.no = x.run
)
select f.space, f.hash, f.item, f.n, f.run, f.queue, f.key, f.record, f.old_row, f.old_queue, f.is_gone,
       case when f.place = 1 and f.is_gone then 'new'
            when not f.replaces and (f.place > 1 or not f.is_own) then 'dropped'
            when coalesce(f.before, f.old_record) = f.record then 'unchanged'
            else 'changed' end,
       case when f.replaces then f.is_last else f.place = 1 and (f.is_gone or f.is_own) end
from found f

-- name: commit_keyed_move
update result as x
set run = k.run, item = k.item, n = k.n, record = k.record, record_key = k.key,
    first_run = case when k.is_gone then k.run else x.first_run end,
    changed_run = case when k.is_gone or x.record <> k.record then k.run else x.changed_run end
from temp.keyed k where x.rowid = k.old_row and k.stored

-- name: commit_keyed_insert
insert into result (run, item, n, record, record_key, key_space, key_hash, first_run, changed_run)
select k.run, k.item, k.n, k.record, k.key, k.space, k.hash, k.run, k.run
from temp.keyed k where k.stored and k.old_row is null

-- name: commit_keyed_lost
update queue_count as c set results = c.results - n.n
from (select k.old_queue as queue, count(*) as n from temp.keyed k
      where k.stored and k.old_row is not null group by k.old_queue) n
where c.queue = n.queue

-- name: commit_keyed_counts
update queue_count as c
set results = c.results + n.stored, new_records = c.new_records + n.new, changed_records = c.changed_records + n.changed,
    unchanged_records = c.unchanged_records + n.unchanged, dropped_records = c.dropped_records + n.dropped
from (select k.queue, sum(k.stored) as stored, sum(k.verdict = 'new') as new, sum(k.verdict = 'changed') as changed,
             sum(k.verdict = 'unchanged') as unchanged, sum(k.verdict = 'dropped') as dropped
      from temp.keyed k group by k.queue) n
where c.queue = n.queue

-- name: commit_keyed_minutes
update minute_count as m set results = m.results + n.n
from (select k.queue, sum(k.stored) as n from temp.keyed k group by k.queue) n
where m.minute = ?1 - ?1 % 60000000 and m.queue = n.queue and m.worker = ?2

-- name: commit_keyed_activity
update run_activity as a set results = a.results + n.n
from (select k.run, sum(k.stored) as n from temp.keyed k group by k.run) n
where a.run = n.run and a.step = 60 and a.at = ?1 - ?1 % 60000000

-- name: commit_keyed_changes
insert into result_change (run, stage, at, records, items)
select o.run, o.stage, ?1, sum(o.records), json_group_array(o.item)
from (
    select k.run, q.stage, k.item, count(*) as records
    from temp.keyed k cross join queue q on q.id = k.queue
    where k.stored group by k.run, q.stage, k.item order by k.run, q.stage, k.item
) o
group by o.run, o.stage

-- name: commit_keyed_dropped
select count(*) from temp.keyed k where k.verdict = 'dropped'

-- name: commit_keyed_end
delete from temp.keyed

-- name: commit_touch
insert or ignore into temp.touched (lane) select e.lane from temp.ended e where e.lane is not null

-- name: commit_lanes
update lane as l
set taken = l.taken - n.left_lane,
    unstarted = l.unstarted - n.left_unstarted + n.held_again,
    waiting = l.waiting + n.back,
    next_at = case when l.delay_max > 0 and n.never_started
                   then max(coalesce(l.next_at, 0), ?1 + cast(1e6 * (
                       l.delay_min + (random() & 0xffffffff) / 4294967295.0 * (l.delay_max - l.delay_min)) as integer))
                   else l.next_at end,
    blocked_why = case when n.blocked_until >= coalesce(l.blocked_until, 0) then n.why else l.blocked_why end,
    blocked_until = case when n.blocked_until is null then l.blocked_until
                         else max(coalesce(l.blocked_until, 0), n.blocked_until) end
from (
    select e.lane,
           sum(not e.holds) as left_lane,
           sum(not e.holds and e.started_at is null) as left_unstarted,
           sum(e.holds and e.started_at is not null) as held_again,
           sum(e.kind = 'throttled' and not e.holds) as back,
           -- Nothing was sent for a skipped item that has not started: its host need not rest.
           max(e.started_at is null and e.kind <> 'skipped') as never_started,
           max(case when e.kind = 'throttled' then ?1 + e.delay end) as blocked_until,
           max(case when e.kind = 'throttled' then e.error end) as why
    from temp.ended e where e.lane is not null group by e.lane
) n
where l.id = n.lane

-- name: commit_counts
update queue_count as c
set leased = c.leased - n.n, done = c.done + n.done, dead = c.dead + n.dead, skipped = c.skipped + n.skipped,
    delayed = c.delayed + n.put_off, waiting = c.waiting + n.n - n.done - n.dead - n.skipped - n.put_off, moved_at = ?1
from (
    select e.queue, count(*) as n, sum(e.kind = 'done') as done, sum(e.kind = 'dead') as dead,
           sum(e.kind = 'skipped') as skipped,
           sum(e.kind in ('retry', 'put_off', 'egress') or (e.kind = 'throttled' and (e.lane is null or e.holds))) as put_off
    from temp.ended e group by e.queue
) n
where c.queue = n.queue

-- name: commit_minutes
insert into minute_count (minute, queue, worker, done, dead, skipped, retried, throttled, seconds)
select ?1 - ?1 % 60000000, e.queue, ?2, sum(e.kind = 'done'), sum(e.kind = 'dead'), sum(e.kind = 'skipped'),
       sum(e.kind = 'retry'), sum(e.kind in ('throttled', 'put_off')), sum(e.seconds)
from temp.ended e where true group by e.queue
on conflict (minute, queue, worker) do update
set done = done + excluded.done, dead = dead + excluded.dead, skipped = skipped + excluded.skipped,
    retried = retried + excluded.retried, throttled = throttled + excluded.throttled, seconds = seconds + excluded.seconds

-- name: commit_activity
-- The history of a run: sums of a batch, and the histograms of its latencies.
insert into run_activity (run, step, at, done, dead, skipped, retried, throttled, results, seconds, waits, works)
values (?1, 60, ?2 - ?2 % 60000000, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
on conflict (run, step, at) do update
set done = done + excluded.done, dead = dead + excluded.dead, skipped = skipped + excluded.skipped,
    retried = retried + excluded.retried, throttled = throttled + excluded.throttled,
    results = results + excluded.results, seconds = seconds + excluded.seconds,
    waits = add_buckets(waits, excluded.waits), works = add_buckets(works, excluded.works)

-- name: commit_author_counts
insert into author_count (run, worker, name, number)
select e.run, ?1, j.key, sum(j.value) from temp.ended e cross join json_each(e.detail, '$.counters') j
where e.kind = 'done' and e.detail is not null group by e.run, j.key
on conflict (run, worker, name) do update set number = number + excluded.number

-- name: commit_held_items
select json_group_array(e.item) from temp.ended e

-- name: commit_summary
-- [number of items, of ended ones, of those in lanes, the queue if there is only one, total seconds].
select json_array(count(*), coalesce(sum(e.kind in ('done', 'dead')), 0), count(e.lane),
                  case when min(e.queue) = max(e.queue) then min(e.queue) end, total(e.seconds))
from temp.ended e

-- name: commit_count_done
-- The usual batch: all done, all of one queue. Two rows change, and no sums are needed.
update queue_count set leased = leased - ?2, done = done + ?2, moved_at = ?3 where queue = ?1

-- name: commit_minute_done
insert into minute_count (minute, queue, worker, done, dead, retried, throttled, seconds)
values (?1 - ?1 % 60000000, ?2, ?3, ?4, 0, 0, 0, ?5)
on conflict (minute, queue, worker) do update set done = done + excluded.done, seconds = seconds + excluded.seconds

-- name: commit_ended_items
select json_group_array(e.item) from temp.ended e where e.kind in ('done', 'dead')

-- name: commit_not_held
-- Those of [item, epoch] without a valid lease, with 1 when this same commit was made before.
select json_group_array(json_array(
    j.value ->> 0,
    exists (select 1 from outcome o where o.item = j.value ->> 0 and o.epoch = j.value ->> 1 and o.worker = ?2
              and o.state in ('done', 'dead', 'skipped') and o.outcome <> 'poison')
    or exists (select 1 from attempt a where a.item = j.value ->> 0 and a.epoch = j.value ->> 1 and a.worker = ?2
                 and a.outcome not in ('crashed', 'released', 'poison', 'cancelled'))))
from json_each(?1) j
where not exists (select 1 from temp.ended e where e.item = j.value ->> 0)

-- name: commit_end
delete from temp.ended

-- name: redirect_lease
-- The item that this one ended as a duplicate of, when this call was made before; 0: it has its lease.
select coalesce((select 0 from lease s where s.item = ?1 and s.epoch = ?2),
                (select o.detail ->> 'same_as' from outcome o
                 where o.item = ?1 and o.epoch = ?2 and o.outcome = 'duplicate'))

-- name: redirect_passed
-- The alias ?2 (a hash) of the item ?3 redirects further.
update outcome set detail = json_object('same_as', ?3, 'redirects', json('true'))
where item = (select i.id from item i where i.stage = ?1 and i.key_hash = ?2) and epoch = 0
  and outcome = 'duplicate' and detail ->> 'same_as' = ?3

-- name: redirect_target
-- [item, the item whose alias it is, whether it redirects further, whether that item runs now].
select json_array(i.id, o.detail ->> 'same_as', o.detail ->> 'redirects' is not null,
                  exists (select 1 from lease s where s.item = o.detail ->> 'same_as'))
from item i left join outcome o on o.item = i.id and o.epoch = 0 and o.outcome = 'duplicate'
where i.stage = ?1 and i.key_hash = ?2

-- name: redirect_same_as
-- The item whose page an item is, through all that are duplicates of others.
with recursive same (item, step) as (
    select ?1, 0
    union all
    select o.detail ->> 'same_as', s.step + 1 from same s
    cross join outcome o on o.item = s.item and o.state = 'skipped' and o.outcome = 'duplicate'
    where s.step < 1000
)
select s.item from same s order by s.step desc limit 1

-- name: redirect_alias
-- An alias ends at once. ?1: the item whose alias it is; ?2: its own id.
insert into outcome (item, claimed_at, ended_at, run, queue, epoch, seconds, tries, rescues, state, outcome, error, detail)
select i.id, ?3, ?3, i.run, i.queue, 0, 0, 0, 0, 'skipped', 'duplicate',
       'the same page as item ' || ?1 || ', which redirects to it', json_object('same_as', ?1)
from item i where i.id = ?2

-- name: redirect_count
insert into queue_count (queue, skipped) values (?1, 1) on conflict (queue) do update set skipped = skipped + 1
