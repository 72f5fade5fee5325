-- The table of the old queue as a view, in the default schema, so that its monitoring queries run as they are.

-- name: url_work_queue
select * from shoal.url_work_queue

-- name: url_results
select * from shoal.url_results
