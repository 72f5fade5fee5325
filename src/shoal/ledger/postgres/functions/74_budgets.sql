-- Budgets of calls. The rules are those of BudgetState in ledger/budgets.py. Times are seconds since 1970.

-- Whether the site has said what is left of the window that runs now.
create or replace function shoal.budget_is_told(b shoal.budget, t double precision) returns boolean
language sql immutable as 'select b.remaining is not null and coalesce(b.reset_at > t, false)';

-- Grants that may have reached the site after this time are subtracted from what the budget has.
create or replace function shoal.budget_since(b shoal.budget, t double precision) returns double precision
language sql immutable as $$
    select case when shoal.budget_is_told(b, t) then b.sent_at else greatest(b.reset_from, t - b.seconds) end
$$;

create or replace function shoal.budget_total(b shoal.budget, t double precision) returns int
language sql immutable as $$
    select case when shoal.budget_is_told(b, t) then b.remaining else coalesce(b.site_limit, b.calls) end
$$;

-- What is known after a site has said something in the response to a request that was sent at said_sent. Its answers
-- may come in another order than it wrote them: within a window the lowest number is the latest.
create or replace function shoal.corrected_budget(
    b shoal.budget, t double precision, said_sent double precision, said_remaining int, said_limit int,
    said_reset_from double precision, said_reset_at double precision, said_rests_until double precision)
returns shoal.budget
language plpgsql immutable as $$
declare
    since double precision := shoal.budget_since(b, t);
    total int := shoal.budget_total(b, t);
    reset_at double precision := coalesce(said_reset_at, said_sent + b.seconds);
    reset_from double precision := greatest(said_sent, least(reset_at, coalesce(said_reset_from, said_reset_at, said_sent)));
begin
    b.rests_until := greatest(b.rests_until, said_rests_until);
    b.site_limit := coalesce(said_limit, b.site_limit);
    if said_remaining is null or reset_at <= t then
        return b;
    end if;
    if shoal.budget_is_told(b, t) then
        if reset_at < b.reset_from then
            return b;
        end if;
        if reset_from <= b.reset_at then
            said_remaining := least(said_remaining, b.remaining);
            reset_from := greatest(reset_from, b.reset_from);
            reset_at := least(reset_at, b.reset_at);
        end if;
    elsif said_sent <= since then
        said_remaining := least(said_remaining, total);
    end if;
    b.remaining := said_remaining;
    b.sent_at := greatest(since, said_sent);
    b.reset_from := reset_from;
    b.reset_at := reset_at;
    return b;
end $$;

-- In one step: apply what the site said, then what became of grants, then grant. wanted is null: grant nothing. A
-- negative number in `unanswered`: calls of this grant have no answer yet; otherwise, calls that were made and are not
-- in `answered`, a list of (grant, time).
create or replace function shoal.exchange_budget(
    pool_name text, exit_key text, kind text, wanted int, policy_calls int, policy_seconds double precision,
    grant_id bigint, usable double precision,
    used bigint[], made int[], unanswered int[], answered_grants bigint[], answered_at double precision[],
    has_words boolean, said_sent double precision, said_remaining int, said_limit int,
    said_reset_from double precision, said_reset_at double precision, said_rests_until double precision,
    out granted int, out seconds double precision, out calls_left int, out at double precision, out resting boolean)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    b shoal.budget;
    since double precision;
    counting int;
    ended double precision;
    target bigint;
    known shoal.budget_grant;
    taken bigint;
    first_end double precision;
    first_open_end double precision;
    exit_rests_until double precision;
begin
    granted := 0;
    seconds := 0;
    resting := false;
    insert into shoal.budget (pool, key, resource) values (pool_name, exit_key, kind)
    on conflict (pool, key, resource) do nothing;
    select x.* into b from shoal.budget x
    where x.pool = pool_name and x.key = exit_key and x.resource = kind for update;
    at := extract(epoch from shoal.clock());
    if wanted is not null then
        b.calls := policy_calls;
        b.seconds := policy_seconds;
    end if;
    if has_words then
        b := shoal.corrected_budget(b, at, said_sent, said_remaining, said_limit, said_reset_from, said_reset_at,
                                    said_rests_until);
    end if;
    update shoal.budget x
    set calls = b.calls, seconds = b.seconds, site_limit = b.site_limit, remaining = b.remaining, sent_at = b.sent_at,
        reset_from = b.reset_from, reset_at = b.reset_at, rests_until = b.rests_until, used_at = at
    where x.id = b.id;
    since := shoal.budget_since(b, at);
    for n in 1 .. cardinality(used) loop
        if unanswered[n] < 0 then
            update shoal.budget_grant g set calls = least(g.calls, made[n])
            where g.id = used[n] and g.budget = b.id and not g.settled;
            continue;
        end if;
        -- Calls that were answered before are in the numbers that the site told.
        select count(*) filter (where u.answered >= since) + unanswered[n], least(at, coalesce(max(u.answered), at))
        into counting, ended
        from unnest(answered_grants, answered_at) as u(id, answered) where u.id = used[n];
        update shoal.budget_grant g set calls = least(g.calls, counting), ends_at = ended, settled = true
        where g.id = used[n] and g.budget = b.id and not g.settled
        returning g.* into known;
        if not found then
            continue;
        end if;
        -- Grants that were settled a short time before are one row, so that a window has a bounded number of rows. Of a
        -- settled grant, granted_at is when the first grant in it was settled.
        select g.id into target from shoal.budget_grant g
        where g.budget = b.id and g.id <> used[n] and g.settled and g.granted_at >= at - b.seconds * 0.01
        order by g.granted_at limit 1;
        if target is null or shoal.budget_is_told(b, at) then
            update shoal.budget_grant g set granted_at = at where g.id = used[n];
        else
            update shoal.budget_grant g set calls = g.calls + known.calls, ends_at = greatest(g.ends_at, ended)
            where g.id = target;
            delete from shoal.budget_grant g where g.id = used[n];
        end if;
    end loop;
    delete from shoal.budget_grant g where g.budget = b.id and (g.ends_at < since or g.calls = 0);
    if wanted is null then
        return;
    end if;
    select coalesce(sum(g.calls), 0), min(g.ends_at), min(g.ends_at) filter (where not g.settled)
    into taken, first_end, first_open_end
    from shoal.budget_grant g where g.budget = b.id;
    calls_left := greatest(0, shoal.budget_total(b, at) - taken);
    if shoal.budget_total(b, at) is null then
        calls_left := null;
    end if;
    select g.* into known from shoal.budget_grant g where g.id = grant_id;
    if found then
        granted := known.calls;
        seconds := greatest(0, known.expires_at - at);
        return;
    end if;
    select x.rests_until into exit_rests_until from shoal.budget x
    where x.pool = pool_name and x.key = exit_key and x.resource = '' and kind <> '';
    b.rests_until := greatest(b.rests_until, exit_rests_until);
    resting := coalesce(b.rests_until > at, false);
    if shoal.budget_is_told(b, at) then
        usable := least(usable, case when b.reset_from - at > 0.02 then b.reset_from else b.reset_at end - at);
    end if;
    if not resting and usable >= 0.02 then
        granted := coalesce(least(wanted, calls_left), wanted);
    end if;
    if granted = 0 then
        seconds := greatest(0.02, case
            when resting then b.rests_until
            when shoal.budget_is_told(b, at)
            then case when b.remaining = 0 then b.reset_at else least(b.reset_at, first_open_end) end
            else coalesce(first_end, at) + b.seconds end - at);
        return;
    end if;
    insert into shoal.budget_grant (id, budget, calls, granted_at, expires_at, ends_at)
    values (grant_id, b.id, granted, at, at + usable, at + usable + least(5, b.seconds / 4));
    seconds := usable;
    calls_left := calls_left - granted;
end $$;
