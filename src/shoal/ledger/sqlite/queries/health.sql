-- name: vitals
-- A file has no sessions to count.
select shoal_now() as "clock [moment]"
