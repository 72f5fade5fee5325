-- Give positions to committed changes that have none, so that positions are in the order in which readers can see them:
-- one session at a time numbers what is committed, and a transaction that commits later gets a later position. So a
-- reader that has seen a position has seen all before it, and no transaction that is open elsewhere holds it up, as one
-- would if readers waited for the oldest transaction id. Positions survive a dump and restore.
create or replace function shoal.number_changes(most int) returns void
language plpgsql
set enable_seqscan = off set jit = off
as $$
begin
    if not exists (select 1 from shoal.result_change c where c.position is null) then
        return;
    end if;
    perform pg_catalog.pg_advisory_xact_lock(21321, 0);
    update shoal.result_change c set position = p.position
    from (select s.id, nextval('shoal.change_position') as position
          from (select x.id from shoal.result_change x where x.position is null order by x.id limit most) s) p
    where c.id = p.id;
end $$;
