-- Exits and their health. model/exit_health.py has the same rules for SQLite; the conformance suite compares them.
--
-- Whatever changes exits of a pool locks the pool's row first and reads the clock then. So changes get their times in
-- the order of their commits, and a reader that continues at the pool's changed_at misses none.

create or replace function shoal.exit_state(state text, until timestamptz, t timestamptz) returns text
language sql immutable as $$
    select case when until is null or until > t then state when state = 'banned' then 'trial' else 'good' end
$$;

-- Locks a pool. Returns the time for changes: the clock's, or just after the last change if the clock was set back.
create or replace function shoal.lock_pool(pool_name text) returns timestamptz
language plpgsql as $$
declare
    last_change timestamptz;
begin
    select p.changed_at into last_change from shoal.exit_pool p where p.name = pool_name for update;
    return greatest(shoal.clock(), last_change + interval '1 microsecond');
end $$;

-- Make a list of exits known: the worker is a member with this list, or `complete` is false and the exits are added to
-- its list. list_name: of a complete list a hash of its content. No nested loops: without statistics the planner would read
-- the whole list for every exit.
create or replace function shoal.register_exits(
    worker_no int, pool_name text, pool_kind text, list_name text, exit_keys text[], labels text[], complete boolean)
returns void
language plpgsql
set enable_nestloop = off set jit = off
as $$
declare
    t timestamptz;
    is_known boolean;
    old_list text;
begin
    insert into shoal.exit_pool (name, kind) values (pool_name, pool_kind) on conflict (name) do nothing;
    t := shoal.lock_pool(pool_name);
    update shoal.exit_pool p set kind = pool_kind, left_at = null
    where p.name = pool_name and (p.kind <> pool_kind or p.left_at is not null);

    -- The exits of a list that is stored are listed: of many workers that start at once, the first one writes them.
    is_known := complete and exists (select 1 from shoal.exit_list x where x.pool = pool_name and x.name = list_name);
    if not is_known then
        insert into shoal.exit (pool, key, label)
        select pool_name, u.key, u.label from unnest(exit_keys, labels) as u(key, label)
        where not exists (select 1 from shoal.exit e where e.pool = pool_name and e.key = u.key)
        order by u.key;
        -- Workers that have asked for changes before do not know what happened to an exit while it was not listed.
        update shoal.exit_host h set changed_at = t
        from shoal.exit e
        where e.pool = pool_name and e.key = any (exit_keys) and e.unlisted_at is not null
          and h.exit = e.id and h.blocked_until > t;
        update shoal.exit e
        set label = u.label, unlisted_at = null,
            changed_at = case when e.unlisted_at is not null and e.state <> 'good' then t else e.changed_at end
        from unnest(exit_keys, labels) as u(key, label)
        where e.pool = pool_name and e.key = u.key and (e.unlisted_at is not null or e.label <> u.label);
        insert into shoal.exit_list as x (pool, name, keys)
        select pool_name, list_name, array(
            select k.key from unnest(exit_keys) as k(key)
            union
            select k.key from shoal.exit_member m join shoal.exit_list o on o.pool = m.pool and o.name = m.list
            cross join lateral unnest(o.keys) as k(key)
            where not complete and m.pool = pool_name and m.worker = worker_no
            order by 1)
        on conflict (pool, name) do update set keys = excluded.keys where x.keys <> excluded.keys;
    end if;
    select m.list into old_list from shoal.exit_member m where m.pool = pool_name and m.worker = worker_no;
    insert into shoal.exit_member as m (pool, worker, list) values (pool_name, worker_no, list_name)
    on conflict (pool, worker) do update set list = excluded.list where m.list <> excluded.list;
    if not is_known or coalesce(old_list, '') not in ('', list_name) then
        perform shoal.relist_exits(pool_name, t);
    end if;
end $$;

-- Forget members that have ended and lists that no member has; exits that are in no list are not listed any more. The
-- last list of a pool that nobody uses stays, so that its exits can be seen.
create or replace function shoal.relist_exits(pool_name text, t timestamptz) returns void
language plpgsql
set enable_nestloop = off set jit = off
as $$
begin
    delete from shoal.exit_member m
    where m.pool = pool_name
      and not exists (select 1 from shoal.worker w where w.no = m.worker and w.state in ('live', 'draining'));
    delete from shoal.exit_list x
    where x.pool = pool_name
      and not exists (select 1 from shoal.exit_member m where m.pool = pool_name and m.list = x.name);
    if exists (select 1 from shoal.exit_list x where x.pool = pool_name) then
        with wanted as materialized (
            select distinct k.key from shoal.exit_list x cross join lateral unnest(x.keys) as k(key)
            where x.pool = pool_name
        )
        update shoal.exit e set unlisted_at = t
        where e.pool = pool_name and e.unlisted_at is null
          and not exists (select 1 from wanted w where w.key = e.key);
    end if;
    update shoal.exit_pool p
    set listed = n.listed, changed_at = greatest(p.changed_at, n.changed_at),
        left_at = case when n.used then null else coalesce(p.left_at, t) end
    from (select (select count(*) from shoal.exit e where e.pool = pool_name and e.unlisted_at is null) as listed,
                 greatest((select max(e.changed_at) from shoal.exit e where e.pool = pool_name and e.changed_at is not null),
                          (select max(h.changed_at) from shoal.exit_host h
                           where h.pool = pool_name and h.changed_at is not null)) as changed_at,
                 exists (select 1 from shoal.exit_member m where m.pool = pool_name) as used) n
    where p.name = pool_name
      and (p.listed, p.changed_at, p.left_at is null)
          is distinct from (n.listed, greatest(p.changed_at, n.changed_at), n.used);
end $$;

-- Add a worker's reports, one per exit, and ban exits that failed too often. answered: the way worked, because a host
-- answered. A report whose number is not above the last one was repeated, and has no effect. The host arrays have one
-- entry per exit and host.
create or replace function shoal.report_exits(
    worker_no int, pool_name text, number bigint, exit_keys text[], succeeded bigint[], failed bigint[],
    in_row bigint[], errors text[], trials boolean[], answered boolean[], host_keys text[], hosts text[],
    host_succeeded bigint[], host_blocked bigint[], host_in_row bigint[], host_errors text[],
    ban_after int, ban_for double precision, block_after int, block_for double precision, max_hosts int)
returns void
language plpgsql
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    t timestamptz;
    pos timestamptz;
    has_changed boolean;
begin
    pos := shoal.lock_pool(pool_name);
    t := shoal.clock();
    if pos is null then
        return;
    end if;
    insert into shoal.exit_member as m (pool, worker, reported) values (pool_name, worker_no, number)
    on conflict (pool, worker) do update set reported = excluded.reported where m.reported < excluded.reported;
    if not found then
        return;
    end if;

    with counted as (
        select e.id, u.*, e.state, e.trial_by, shoal.exit_state(e.state, e.until, t) as was,
               case when u.succeeded > 0 then least(u.in_row, u.failed) else e.failures_in_row + u.failed end as row_now
        from unnest(exit_keys, succeeded, failed, in_row, errors, trials, answered)
             as u(key, succeeded, failed, in_row, error, trial, answered)
        -- "offset 0" keeps the order: each exit is found by its key, whatever the planner believes about the table.
        cross join lateral (select x.* from shoal.exit x where x.pool = pool_name and x.key = u.key offset 0) e
    ),
    decided as (
        select c.*, case
            when c.was = 'good' and c.failed > 0 and c.row_now >= ban_after then 'ban'
            when c.was = 'good' and c.state <> 'good' then 'rested'
            when c.was = 'trial' and c.trial and c.trial_by = worker_no then
                case when c.answered then 'good' when c.failed > 0 then 'ban' else 'untried' end
            else 'stay' end as move
        from counted c
    ),
    changed as (
        update shoal.exit e
        set succeeded = e.succeeded + d.succeeded, failed = e.failed + d.failed,
            failures_in_row = case when d.move = 'good' then 0 else d.row_now end,
            error = case when d.error <> '' then d.error else e.error end,
            used_at = case when d.answered or d.failed > 0 then t else e.used_at end,
            state = case d.move when 'ban' then 'banned' when 'good' then 'good' when 'rested' then 'good' else e.state end,
            until = case d.move when 'ban' then t + shoal.seconds(ban_for) when 'good' then null when 'rested' then null
                    else e.until end,
            why = case d.move
                when 'ban' then
                    case when d.was = 'good' then d.row_now || ' failures in a row' else 'the trial after its ban failed' end
                    || case when d.error <> '' then ': ' || d.error else '' end
                when 'good' then '' when 'rested' then '' else e.why end,
            set_by = case when d.move in ('ban', 'good', 'rested') then '' else e.set_by end,
            trial_by = case when d.move = 'stay' then e.trial_by end,
            trial_until = case when d.move = 'stay' then e.trial_until end,
            changed_at = case when d.move in ('ban', 'good', 'untried') then pos else e.changed_at end
        from decided d where e.id = d.id
        returning d.move
    )
    select coalesce(bool_or(c.move in ('ban', 'good', 'untried')), false) into has_changed from changed c;

    if cardinality(hosts) > 0 then
        with counted as (
            select e.id, u.*, h.blocked_until, h.succeeded as had_succeeded, h.blocked as had_blocked,
                   h.error as had_error, h.changed_at,
                   case when u.succeeded > 0 then least(u.in_row, u.blocked)
                        else coalesce(h.blocks_in_row, 0) + u.blocked end as row_now
            from unnest(host_keys, hosts, host_succeeded, host_blocked, host_in_row, host_errors)
                 as u(key, host, succeeded, blocked, in_row, error)
            cross join lateral (select x.id from shoal.exit x where x.pool = pool_name and x.key = u.key offset 0) e
            left join lateral (select x.* from shoal.exit_host x where x.exit = e.id and x.host = u.host offset 0) h
                on true
            where h.exit is not null or u.blocked > 0
        ),
        decided as (
            select c.*, coalesce(c.blocked_until <= t, true) and c.blocked > 0 and c.row_now >= block_after as blocks
            from counted c
        ),
        stored as (
            insert into shoal.exit_host as x
                (exit, host, pool, succeeded, blocked, blocks_in_row, blocked_until, error, used_at, changed_at)
            select d.id, d.host, pool_name, coalesce(d.had_succeeded, 0) + d.succeeded,
                   coalesce(d.had_blocked, 0) + d.blocked, d.row_now,
                   case when d.blocks then t + shoal.seconds(block_for) else d.blocked_until end,
                   case when d.error <> '' then d.error else coalesce(d.had_error, '') end, t,
                   case when d.blocks then pos else d.changed_at end
            from decided d
            on conflict (exit, host) do update
            set succeeded = excluded.succeeded, blocked = excluded.blocked, blocks_in_row = excluded.blocks_in_row,
                blocked_until = excluded.blocked_until, error = excluded.error, used_at = excluded.used_at,
                changed_at = excluded.changed_at
            returning x.changed_at
        )
        select has_changed or coalesce(bool_or(s.changed_at = pos), false) into has_changed from stored s;
        -- The hosts that answered longest ago are forgotten first, blocked ones last.
        delete from shoal.exit_host h
        using (select x.exit, x.host, row_number() over (
                   partition by x.exit order by coalesce(x.blocked_until > t, false) desc, x.used_at desc, x.host) as n
               from shoal.exit_host x
               where x.exit in (select e.id from shoal.exit e where e.pool = pool_name and e.key = any (host_keys))) o
        where o.n > max_hosts and h.exit = o.exit and h.host = o.host;
    end if;
    if has_changed then
        update shoal.exit_pool p set changed_at = pos where p.name = pool_name;
    end if;
end $$;

-- True for one worker at a time: the ban of the exit is over, and the worker tries it.
create or replace function shoal.start_trial(worker_no int, pool_name text, exit_key text, hold double precision)
returns boolean
language plpgsql as $$
declare
    t timestamptz;
    pos timestamptz;
begin
    -- Most callers come too early or too late: they need no lock.
    if not exists (
        select 1 from shoal.exit e
        where e.pool = pool_name and e.key = exit_key and e.state = 'banned' and e.until <= shoal.clock()
          and (e.trial_until is null or e.trial_until <= shoal.clock() or e.trial_by = worker_no)
    ) then
        return false;
    end if;
    pos := shoal.lock_pool(pool_name);
    t := shoal.clock();
    update shoal.exit e set trial_by = worker_no, trial_until = t + shoal.seconds(hold), changed_at = pos
    where e.pool = pool_name and e.key = exit_key and e.state = 'banned' and e.until <= t
      and (e.trial_until is null or e.trial_until <= t or e.trial_by = worker_no);
    if not found then
        return false;
    end if;
    update shoal.exit_pool p set changed_at = pos where p.name = pool_name;
    return true;
end $$;

-- The bans of these exits end now, so that they are tried; those that an operator set stay.
create or replace function shoal.end_bans(pool_name text, exit_keys text[]) returns void
language plpgsql as $$
declare
    t timestamptz;
    pos timestamptz;
begin
    pos := shoal.lock_pool(pool_name);
    t := shoal.clock();
    update shoal.exit e set until = t, changed_at = pos
    where e.pool = pool_name and e.key = any (exit_keys) and e.set_by = ''
      and shoal.exit_state(e.state, e.until, t) = 'banned';
    if found then
        update shoal.exit_pool p set changed_at = pos where p.name = pool_name;
    end if;
end $$;

-- An operator rests ('resting'), bans ('banned') or frees ('good') an exit. Returns null when there is no such exit.
create or replace function shoal.set_exit(
    pool_name text, exit_key text, new_state text, wait double precision, reason text, actor text)
returns bigint
language plpgsql as $$
declare
    t timestamptz;
    pos timestamptz;
    exit_id bigint;
    exit_label text;
begin
    pos := shoal.lock_pool(pool_name);
    t := shoal.clock();
    update shoal.exit e
    set state = new_state, until = case when new_state <> 'good' then t + shoal.seconds(wait) end,
        why = case when new_state <> 'good' then reason else '' end,
        set_by = case when new_state <> 'good' then actor else '' end,
        trial_by = null, trial_until = null, changed_at = pos,
        failures_in_row = case when new_state = 'banned' then e.failures_in_row else 0 end
    where e.pool = pool_name and e.key = exit_key
    returning e.id, e.label into exit_id, exit_label;
    if exit_id is null then
        return null;
    end if;
    if new_state = 'good' then
        update shoal.exit_host h
        set blocks_in_row = 0, blocked_until = null,
            changed_at = case when h.blocked_until is not null then pos else h.changed_at end
        where h.exit = exit_id;
    end if;
    update shoal.exit_pool p set changed_at = pos where p.name = pool_name;
    insert into shoal.event (at, actor, action, subject, detail)
    values (t, actor, case new_state when 'good' then 'exit.freed' when 'banned' then 'exit.banned' else 'exit.rested' end,
            pool_name || ' ' || exit_label,
            json_strip_nulls(json_build_object('key', exit_key, 'seconds', wait, 'why', nullif(reason, ''))));
    return exit_id;
end $$;

-- Drop members that have ended, exits that nobody has listed for `forget` seconds, and hosts that have not answered for
-- so long. A ban or rest that still holds is kept. At most `most` exits and hosts each; returns the larger number.
create or replace function shoal.tidy_exits(forget double precision, most int) returns int
language plpgsql
set lock_timeout = '1s' set jit = off
as $$
declare
    t timestamptz := shoal.clock();
    pool_name text;
    doomed bigint[];
    deleted int;
    most_deleted int := 0;
begin
    for pool_name in
        select p.name from shoal.exit_pool p
        where exists (select 1 from shoal.exit_member m join shoal.worker w on w.no = m.worker
                      where m.pool = p.name and w.state in ('stopped', 'lost'))
           or p.left_at < t - shoal.seconds(forget)
           or exists (select 1 from shoal.exit e
                      where e.pool = p.name and e.unlisted_at < t - shoal.seconds(forget))
        order by p.name
    loop
        perform shoal.lock_pool(pool_name);
        perform shoal.relist_exits(pool_name, t);
        doomed := array(
            select e.id from shoal.exit e
            where e.pool = pool_name and shoal.exit_state(e.state, e.until, t) not in ('banned', 'resting')
              and (e.unlisted_at < t - shoal.seconds(forget)
                   or (select p.left_at < t - shoal.seconds(forget) from shoal.exit_pool p where p.name = pool_name))
            limit most);
        delete from shoal.exit_host h where h.exit = any (doomed);
        delete from shoal.exit e where e.id = any (doomed);
        most_deleted := greatest(most_deleted, cardinality(doomed));
        update shoal.exit_pool p
        set listed = (select count(*) from shoal.exit e where e.pool = pool_name and e.unlisted_at is null)
        where p.name = pool_name and doomed <> '{}';
        delete from shoal.exit_pool p
        where p.name = pool_name and p.left_at < t - shoal.seconds(forget)
          and not exists (select 1 from shoal.exit e where e.pool = pool_name);
    end loop;
    delete from shoal.exit_host h where (h.exit, h.host) in (
        select x.exit, x.host from shoal.exit_host x
        where x.used_at < t - shoal.seconds(forget) and coalesce(x.blocked_until <= t, true) limit most);
    get diagnostics deleted = row_count;
    return greatest(most_deleted, deleted);
end $$;
