-- Exits. The rules about their health are in model/exit_health.py; the reads differ from PostgreSQL in the arithmetic of
-- times. Seconds instead of times, because the caller's clock may differ.

-- name: exit_member_list
-- Whether a worker's list is stored already: then registering it again writes nothing.
select m.list from exit_member m join exit_pool p on p.name = m.pool
where m.pool = ?1 and m.worker = ?2 and p.kind = ?3

-- name: make_pool
insert into exit_pool (name, kind) values (?1, ?2)
on conflict (name) do update set kind = excluded.kind, left_at = null where kind <> excluded.kind or left_at is not null

-- name: pool_last_change
select p.changed_at from exit_pool p where p.name = ?1

-- name: set_pool_changed
update exit_pool set changed_at = ?2 where name = ?1

-- name: has_exit_list
select exists (select 1 from exit_list x where x.pool = ?1 and x.name = ?2)

-- name: add_exits
-- ?2: [[key, label], ...]
insert into exit (pool, key, label)
select ?1, j.value ->> 0, j.value ->> 1 from json_each(?2) j
where not exists (select 1 from exit e where e.pool = ?1 and e.key = j.value ->> 0)

-- name: relist_blocks
-- Workers that have asked for changes before do not know what happened to an exit while it was not listed.
update exit_host set changed_at = ?3
where blocked_until > ?4 and exit in (
    select e.id from json_each(?2) j cross join exit e on e.pool = ?1 and e.key = j.value ->> 0
    where e.unlisted_at is not null)

-- name: exits_to_list
-- Those of [[key, label], ...] that are not listed, or have another label, as [[id, label], ...].
select json_group_array(json_array(e.id, j.value ->> 1))
from json_each(?2) j cross join exit e on e.pool = ?1 and e.key = j.value ->> 0
where e.unlisted_at is not null or e.label <> j.value ->> 1

-- name: list_again
update exit set label = u.value ->> 1, unlisted_at = null,
    changed_at = case when unlisted_at is not null and state <> 'good' then ?2 else changed_at end
from json_each(?1) u where exit.id = u.value ->> 0

-- name: store_exit_list
-- ?3: [key, ...]; ?4: the worker whose list they are added to, or null.
insert into exit_list (pool, name, keys)
select ?1, ?2, json_group_array(u.key) from (
    select j.value as key from json_each(?3) j
    union
    select k.value from exit_member m cross join exit_list o on o.pool = m.pool and o.name = m.list
    cross join json_each(o.keys) k where m.pool = ?1 and m.worker = ?4
    order by 1) u
where true
on conflict (pool, name) do update set keys = excluded.keys where keys <> excluded.keys

-- name: set_exit_member
insert into exit_member (pool, worker, list) values (?1, ?2, ?3)
on conflict (pool, worker) do update set list = excluded.list where list <> excluded.list

-- name: drop_ended_members
delete from exit_member where pool = ?1
    and not exists (select 1 from worker w where w.no = worker and w.state in ('live', 'draining'))

-- name: drop_unused_lists
delete from exit_list where pool = ?1
    and not exists (select 1 from exit_member m where m.pool = ?1 and m.list = exit_list.name)

-- name: unlist_exits
-- The last list of a pool that nobody uses stays, so that its exits can be seen.
update exit set unlisted_at = ?2
where pool = ?1 and unlisted_at is null and exists (select 1 from exit_list x where x.pool = ?1)
  and key not in (select k.value from exit_list x cross join json_each(x.keys) k where x.pool = ?1)

-- name: update_pool
update exit_pool set
    listed = (select count(*) from exit e where e.pool = ?1 and e.unlisted_at is null),
    left_at = case when exists (select 1 from exit_member m where m.pool = ?1) then null else coalesce(left_at, ?2) end
where name = ?1

-- name: count_report
-- Changes nothing when the report was repeated.
insert into exit_member (pool, worker, reported) values (?1, ?2, ?3)
on conflict (pool, worker) do update set reported = excluded.reported where reported < excluded.reported

-- name: reported_exits
-- ?2: [key, ...]
select e.id, e.key, e.label, e.state, e.until, e.why, e.set_by, e.trial_by, e.trial_until, e.succeeded, e.failed,
       e.failures_in_row, e.error, e.used_at
from json_each(?2) j cross join exit e on e.pool = ?1 and e.key = j.value

-- name: store_exits
-- ?1: the records as lists, ?2: the time for those that changed.
update exit set state = u.value ->> 1, until = u.value ->> 2, why = u.value ->> 3, set_by = u.value ->> 4,
    trial_by = u.value ->> 5, trial_until = u.value ->> 6, succeeded = u.value ->> 7, failed = u.value ->> 8,
    failures_in_row = u.value ->> 9, error = u.value ->> 10, used_at = u.value ->> 11,
    changed_at = case when u.value ->> 12 then ?2 else changed_at end
from json_each(?1) u where exit.id = u.value ->> 0

-- name: reported_hosts
-- ?1: [[exit, host], ...]
select h.exit, h.host, h.succeeded, h.blocked, h.blocks_in_row, h.blocked_until, h.error
from json_each(?1) j cross join exit_host h on h.exit = j.value ->> 0 and h.host = j.value ->> 1

-- name: store_hosts
insert into exit_host (exit, host, pool, succeeded, blocked, blocks_in_row, blocked_until, error, used_at, changed_at)
select u.value ->> 0, u.value ->> 1, ?2, u.value ->> 2, u.value ->> 3, u.value ->> 4, u.value ->> 5, u.value ->> 6, ?3,
       case when u.value ->> 7 then ?4 end
from json_each(?1) u where true
on conflict (exit, host) do update
set succeeded = excluded.succeeded, blocked = excluded.blocked, blocks_in_row = excluded.blocks_in_row,
    blocked_until = excluded.blocked_until, error = excluded.error, used_at = excluded.used_at,
    changed_at = coalesce(excluded.changed_at, changed_at)

-- name: drop_excess_hosts
-- The hosts that answered longest ago are forgotten first, blocked ones last. ?1: [exit, ...]
delete from exit_host where (exit, host) in (
    select o.exit, o.host from (
        select h.exit, h.host, row_number() over (
            partition by h.exit order by coalesce(h.blocked_until > ?2, 0) desc, h.used_at desc, h.host) as n
        from json_each(?1) j cross join exit_host h on h.exit = j.value) o
    where o.n > ?3)

-- name: free_hosts
update exit_host set blocks_in_row = 0, blocked_until = null,
    changed_at = case when blocked_until is not null then ?2 else changed_at end
where exit = ?1

-- name: pools_to_tidy
select p.name from exit_pool p
where exists (select 1 from exit_member m join worker w on w.no = m.worker
              where m.pool = p.name and w.state in ('stopped', 'lost'))
   or p.left_at < ?1
   or exists (select 1 from exit e where e.pool = p.name and e.unlisted_at < ?1)

-- name: forgettable_exits
select json_group_array(x.id) from (
    select e.id from exit e join exit_pool p on p.name = e.pool
    where e.pool = ?1 and (e.state = 'good' or e.until <= ?3) and (e.unlisted_at < ?2 or p.left_at < ?2)
    limit ?4) x

-- name: forget_hosts
delete from exit_host where exit in (select value from json_each(?1))

-- name: forget_exits
delete from exit where id in (select value from json_each(?1))

-- name: forget_pool
delete from exit_pool where name = ?1 and left_at < ?2 and not exists (select 1 from exit e where e.pool = ?1)

-- name: tidy_hosts
delete from exit_host where (exit, host) in (
    select h.exit, h.host from exit_host h
    where h.used_at < ?1 and coalesce(h.blocked_until <= ?2, 1) limit ?3)

-- name: pool_changes
-- What changed since a time; a millisecond earlier, because a time as a number is not exact.
select p.changed_at / 1e6 as at,
    (select json_group_array(x.id) from (
        select w.id from exit_member m join worker w on w.no = m.worker
        where m.pool = p.name and w.state in ('live', 'draining') order by w.id) x) as members,
    (select json_group_array(json_array(
                e.key, exit_state(e.state, e.until, clock()),
                (e.until - clock()) / 1e6, (e.trial_until - clock()) / 1e6, e.why))
     from exit e
     where e.pool = p.name and e.changed_at is not null
       and e.changed_at >= cast(?2 * 1e6 as integer) - 1000) as exits,
    (select json_group_array(json_array(
                e.key, h.host, coalesce((h.blocked_until - clock()) / 1e6, 0)))
     from exit_host h join exit e on e.id = h.exit
     where h.pool = p.name and h.changed_at is not null
       and h.changed_at >= cast(?2 * 1e6 as integer) - 1000) as blocks
from exit_pool p where p.name = ?1

-- name: pool_state
-- All listed exits that are not good, and all blocks.
select p.changed_at / 1e6 as at,
    (select json_group_array(x.id) from (
        select w.id from exit_member m join worker w on w.no = m.worker
        where m.pool = p.name and w.state in ('live', 'draining') order by w.id) x) as members,
    (select json_group_array(json_array(
                e.key, exit_state(e.state, e.until, clock()),
                (e.until - clock()) / 1e6, (e.trial_until - clock()) / 1e6, e.why))
     from exit e
     where e.pool = p.name and e.unlisted_at is null and e.state <> 'good'
       and exit_state(e.state, e.until, clock()) <> 'good') as exits,
    (select json_group_array(json_array(
                e.key, h.host, (h.blocked_until - clock()) / 1e6))
     from exit_host h join exit e on e.id = h.exit
     where h.pool = p.name and h.blocked_until is not null and h.blocked_until > clock()
       and e.unlisted_at is null) as blocks
from exit_pool p where p.name = ?1

-- name: list_pools
-- Good exits are the listed ones that are not in another state: they are not counted.
select p.name as pool, p.kind, p.listed as exits, count(*) filter (where s.now = 'banned') as banned,
       count(*) filter (where s.now = 'resting') as resting, count(*) filter (where s.now = 'trial') as trial,
       (min(s.until) filter (where s.now in ('banned', 'resting')) - clock()) / 1e6 as first_back,
       (select count(*) from exit_member m join worker w on w.no = m.worker
        where m.pool = p.name and w.state in ('live', 'draining')) as members
from exit_pool p
left join (select e.pool, e.until, exit_state(e.state, e.until, clock()) as now from exit e
           where e.unlisted_at is null and e.state <> 'good') s on s.pool = p.name
where p.listed > 0
group by p.name order by p.name

-- name: list_exits
select e.*, p.kind, exit_state(e.state, e.until, clock()) as state_now,
       (e.until - clock()) / 1e6 as until_seconds,
       (e.trial_until - clock()) / 1e6 as trial_seconds,
       (clock() - e.used_at) / 1e6 as used_seconds
from exit e join exit_pool p on p.name = e.pool
where e.unlisted_at is null and (e.pool, e.label, e.key) > (?2, ?3, ?4)
  and e.pool <= coalesce(?1, char(1114111))
  and (?5 is null or exit_state(e.state, e.until, clock()) = ?5)
order by e.pool, e.label, e.key limit ?6

-- name: list_exits_not_good
-- Few of many are banned or rest: an index has only them.
select e.*, p.kind, exit_state(e.state, e.until, clock()) as state_now,
       (e.until - clock()) / 1e6 as until_seconds,
       (e.trial_until - clock()) / 1e6 as trial_seconds,
       (clock() - e.used_at) / 1e6 as used_seconds
from exit e join exit_pool p on p.name = e.pool
where e.unlisted_at is null and e.state <> 'good' and (e.pool, e.label, e.key) > (?2, ?3, ?4)
  and e.pool <= coalesce(?1, char(1114111))
  and exit_state(e.state, e.until, clock()) = ?5
order by e.pool, e.label, e.key limit ?6

-- name: get_exit
select e.*, p.kind, exit_state(e.state, e.until, clock()) as state_now,
       (e.until - clock()) / 1e6 as until_seconds,
       (e.trial_until - clock()) / 1e6 as trial_seconds,
       (clock() - e.used_at) / 1e6 as used_seconds
from exit e join exit_pool p on p.name = e.pool
where e.pool = ?1 and e.key = ?2

-- name: exit_hosts
select h.host, h.succeeded, h.blocked, h.blocks_in_row, h.error,
       max(0, coalesce((h.blocked_until - clock()) / 1e6, 0)) as blocked_seconds
from exit_host h where h.exit = ?1
order by h.blocked_until is not null and h.blocked_until > clock() desc, h.blocked desc, h.host limit ?2

-- name: exit_matrix
-- Blocks of a pool: the ?2 most blocked hosts, and the ?3 exits that are blocked most there, by the newest blocks.
with recent as materialized (
    select h.exit, h.host, h.blocked, h.succeeded, h.blocked_until, h.blocked_until > clock() as is_now
    from exit_host h indexed by exit_host_blocked where h.pool = ?1 and h.blocked_until is not null
    order by h.blocked_until desc limit 3000
),
hosts as materialized (
    select s.host, row_number() over (order by sum(s.is_now) desc, sum(s.blocked) desc, s.host) as place
    from recent s group by s.host order by place limit ?2
),
exits as materialized (
    select s.exit, row_number() over (order by sum(s.is_now) desc, sum(s.blocked) desc, s.exit) as place
    from recent s join hosts t on t.host = s.host join exit e on e.id = s.exit and e.unlisted_at is null
    group by s.exit order by place limit ?3
)
select e.key, e.label, exit_state(e.state, e.until, clock()) as state, t.host, h.blocked, h.succeeded,
       case when h.blocked_until > clock() then (h.blocked_until - clock()) / 1e6 end as until,
       x.place as exit_place, t.place as host_place
from exits x
cross join hosts t
cross join exit_host h on h.exit = x.exit and h.host = t.host
cross join exit e on e.id = x.exit
order by x.place, t.place
