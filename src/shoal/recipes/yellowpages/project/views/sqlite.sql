-- Views of the ledger under the names of the Yellow Pages scraper: `shoal db views yellowpages`. They show the newest run.
-- Times are UTC.

-- name: targets
-- parked: put aside by an operator, or failed in five attempts or more; `shoal items retry` still finds it. The ledger
-- counts the tries of an item anew after `items retry`; attempts here are all of them, with the last one, whose end is in outcome.
with newest as (
    select r.no, r.id from run r
    where r.scraper = 'yellowpages' and r.state <> 'removed' order by r.no desc limit 1
)
select i.id, n.id as run_id, i.payload ->> 'provider' as provider, i.payload ->> 'state_id' as state_id,
       i.payload ->> 'city' as city, i.payload ->> 'city_slug' as city_slug, i.payload ->> 'yp_geo' as yp_geo,
       i.payload ->> 'category_label' as category_label, i.payload ->> 'category_slug' as category_slug,
       i.url as primary_url, i.payload ->> 'fallback_url' as fallback_url, i.payload ->> 'max_pages' as max_pages,
       i.priority,
       case when s.item is not null then 'in_progress'
            when o.state is null then 'planned'
            when o.state = 'done' then 'done'
            when o.state = 'dead' and 4 > (
                select count(*) from attempt a
                where a.item = i.id and a.outcome in ('transient', 'blocked', 'permanent', 'poison')) then 'failed'
            else 'parked' end as status,
       (select count(*) from attempt a
        where a.item = i.id and a.outcome in ('transient', 'blocked', 'permanent', 'poison'))
       + case when s.item is not null or o.state <> 'cancelled' then 1 else 0 end as attempts,
       coalesce(o.error, case when o.state = 'cancelled' then 'cancelled' end) as note,
       p.id as claimed_by,
       strftime('%Y-%m-%d %H:%M:%f', p.heartbeat_at / 1e6, 'unixepoch') as heartbeat_at,
       strftime('%Y-%m-%d %H:%M:%f', s.claimed_at / 1e6, 'unixepoch') as started_at,
       strftime('%Y-%m-%d %H:%M:%f', o.ended_at / 1e6, 'unixepoch') as finished_at,
       o.error as last_error, o.detail ->> '$.counters.accepted' as accepted, o.detail ->> '$.counters.rejected' as rejected
from newest n
cross join queue k on k.run = n.no
cross join item i on i.queue = k.id
left join lease s on s.item = i.id
left join outcome o on o.item = i.id
left join delayed d on d.item = i.id
left join ready y on y.queue = i.queue and y.priority = i.priority and y.item = i.id
left join waiting w on w.lane = i.lane and w.run = i.run and w.priority = i.priority and w.item = i.id
left join worker p on p.no = s.worker;

-- name: companies
-- Each company once, with its values of the run that saw it last.
select x.record ->> 'company' as company, x.record ->> 'name' as name, x.record ->> 'phone' as phone,
       x.record ->> 'address' as address, x.record ->> 'email' as email, x.record ->> 'website' as website,
       x.record ->> 'profile_url' as profile_url, x.record ->> 'category_tags' as category_tags,
       x.record ->> 'rating' as rating, x.record ->> 'reviews' as reviews, x.record ->> 'is_sponsored' as is_sponsored,
       x.record ->> 'hours' as hours, x.record ->> 'description' as description, x.record ->> 'services' as services,
       x.record ->> 'source_page' as source_page, x.record ->> 'score' as score, x.record ->> 'state_id' as state_id,
       x.record ->> 'city_slug' as city_slug, x.record ->> 'category_slug' as category_slug, r.id as run_id
from result x join run r on r.no = x.run
where r.scraper = 'yellowpages' and r.state <> 'removed';
