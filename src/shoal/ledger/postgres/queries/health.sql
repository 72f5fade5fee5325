-- name: vitals
-- S0.20. Sessions count against the limit of the whole server; waits and open transactions matter in this database.
-- A transaction that autovacuum holds is none of ours to worry about.
select shoal.clock() as clock,
       count(*) filter (where a.backend_type = 'client backend')::int as sessions,
       current_setting('max_connections')::int as most_sessions,
       (count(*) filter (where a.wait_event_type = 'Lock' and a.datname = current_database()))::int as lock_waits,
       extract(epoch from max(clock_timestamp() - a.xact_start)
               filter (where a.datname = current_database() and a.backend_type = 'client backend'
                         and a.pid <> pg_backend_pid()))::float8 as longest_transaction
from pg_catalog.pg_stat_activity a
