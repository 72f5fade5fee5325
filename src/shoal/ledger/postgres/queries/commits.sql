-- Commits: one call of functions/40_commit.sql; targets of redirects: functions/46_redirects.sql.

-- name: commit
select * from shoal.commit($1::int, $2::bigint[], $3::int[], $4::int[], $5::text[], $6::text[], $7::float8[],
    $8::text[], $9::real[], $10::json[], $11::bigint[], $12::int[], $13::json[],
    $14::bigint[], $15::int[], $16::bytea[], $17::text[], $18::text[], $19::json[], $20::int[], $21::int[],
    $22::float8[], $23::int[], $24::json[], $25::int2[], $26::text[], $27::int[],
    $28::text[], $29::bytea[], $30::int[], $31::boolean[], $32::int2[])

-- name: visit_redirect
select * from shoal.visit_redirect($1::int, $2::int, $3::bigint, $4::int, $5::int, $6::bytea, $7::text, $8::text,
    $9::json, $10::smallint, $11::text, $12::bytea, $13::text, $14::real)
