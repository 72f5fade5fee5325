-- The ledger as the tables that the monitoring queries of the earlier system read. Of a developer in several runs, the
-- newest run that has begun with the developer counts; fields, links and repositories are the last that were stored.
-- Times are texts in UTC, hireable and verified are 0 and 1.

-- name: developers
-- A cancellation is an error only while it lasts: an item that was retried afterwards has it in its history. What
-- import_developers.py stored is in the payload: `status` and `row`; `imported` of those who were INITIAL.
select d.id,
       coalesce(d.record ->> 'username', d.username) as username,
       d.record ->> 'name' as name,
       d.record ->> 'email' as email,
       d.record ->> 'bio' as bio,
       d.record ->> 'location' as location,
       d.record ->> 'company' as company,
       d.record ->> 'blog' as blog,
       d.record ->> 'twitter_username' as twitter_username,
       d.record ->> 'hireable' as hireable,
       d.record ->> 'followers' as followers,
       d.record ->> 'following' as following,
       d.record ->> 'public_repos' as public_repos,
       d.record ->> 'public_gists' as public_gists,
       coalesce(d.record ->> 'profile_url', 'https://github.com/' || d.key) as profile_url,
       d.record ->> 'avatar_url' as avatar_url,
       datetime(d.record ->> 'created_at') as created_at,
       datetime(d.record ->> 'updated_at') as updated_at,
       d.enrichment_status,
       (select w.id from worker w where w.no = d.worker) as claimed_by,
       strftime('%Y-%m-%d %H:%M:%f', d.processing_started_at / 1e6, 'unixepoch') as processing_started_at,
       coalesce(strftime('%Y-%m-%d %H:%M:%f', coalesce(d.first_scraped_at, d.record ->> 'scraped_at')),
                strftime('%Y-%m-%d %H:%M:%f', d.found_at / 1e6, 'unixepoch')) as scraped_at,
       coalesce(strftime('%Y-%m-%d %H:%M:%f', d.imported ->> 'profiled_at'),
                strftime('%Y-%m-%d %H:%M:%f', d.profiled_at / 1e6, 'unixepoch')) as profiled_at,
       coalesce(strftime('%Y-%m-%d %H:%M:%f', d.imported ->> 'enhanced_at'),
                strftime('%Y-%m-%d %H:%M:%f', d.enhanced_at / 1e6, 'unixepoch')) as enhanced_at,
       max(d.retries, coalesce(d.imported ->> 'retry_count', 0)) as retry_count,
       coalesce(d.last_error, d.imported ->> 'last_error') as last_error,
       d.run_id
from (
    select i.id, i.key, i.created_at as found_at, r.id as run_id,
           coalesce(i.payload ->> 'username', i.key) as username,
           case when profile_end.state = 'done' and coalesce(i.payload ->> 'status', 'FAILED') = 'FAILED'
                then null  -- profiled since
                else coalesce(i.payload -> 'row', i.payload -> 'imported') end as imported,
           i.payload -> 'imported' ->> 'scraped_at' as first_scraped_at,
           coalesce(p.record, i.payload -> 'row',
                    (select coalesce(stored.record, old.payload -> 'row') from run n
                     join stage g on g.run = n.no and g.name = 'profile'
                     join item old on old.stage = g.id and old.key_hash = i.key_hash
                     left join result stored on stored.run = old.run and stored.item = old.id and stored.n = 0
                     where n.scraper = r.scraper and n.state <> 'removed' and n.no < r.no
                       and (stored.record is not null or old.payload -> 'row' is not null)
                     order by n.no desc limit 1)) as record,
           case when i.payload ->> 'status' = 'ENHANCED' then 'ENHANCED'
                when social_lease.item is not null or profile_lease.item is not null then 'PROCESSING'
                when social_end.state = 'done' then 'ENHANCED'
                when social_end.state = 'dead' or profile_end.state = 'dead' then 'FAILED'
                when profile_end.state = 'done' then 'PROFILED'
                else coalesce(i.payload ->> 'status', 'INITIAL') end as enrichment_status,
           coalesce(social_lease.worker, profile_lease.worker, social_end.worker, profile_end.worker) as worker,
           coalesce(social_lease.claimed_at, profile_lease.claimed_at, social_end.claimed_at, profile_end.claimed_at)
               as processing_started_at,
           case when profile_end.state = 'done' then profile_end.ended_at end as profiled_at,
           case when social_end.state = 'done' then social_end.ended_at end as enhanced_at,
           max(coalesce(social_lease.tries, social_later.tries, social_ready.tries, social_waiting.tries,
                        social_end.tries - 1, profile_lease.tries, profile_later.tries, profile_ready.tries,
                        profile_waiting.tries, profile_end.tries - 1, 0), 0) as retries,
           coalesce(social_end.error,
                    case when i.payload -> 'row' is null or profile_end.state = 'dead' then profile_end.error end,
                    (select a.error from attempt a where a.run = i.run and a.item in (i.id, s.id)
                       and a.error is not null and a.outcome <> 'cancelled'
                     order by a.ended_at desc limit 1)) as last_error
    from run r
    join stage profile on profile.run = r.no and profile.name = 'profile'
    join stage social on social.run = r.no and social.name = 'social'
    join item i on i.stage = profile.id
    left join result p on p.run = i.run and p.item = i.id and p.n = 0
    left join lease profile_lease on profile_lease.item = i.id
    left join delayed profile_later on profile_later.item = i.id
    left join ready profile_ready
           on profile_ready.queue = i.queue and profile_ready.priority = i.priority and profile_ready.item = i.id
    left join waiting profile_waiting on profile_waiting.queue = i.queue and profile_waiting.item = i.id
    left join outcome profile_end on profile_end.run = i.run and profile_end.item = i.id
    left join item s on s.stage = social.id and s.key_hash = i.key_hash
    left join lease social_lease on social_lease.item = s.id
    left join delayed social_later on social_later.item = s.id
    left join ready social_ready
           on social_ready.queue = s.queue and social_ready.priority = s.priority and social_ready.item = s.id
    left join waiting social_waiting on social_waiting.queue = s.queue and social_waiting.item = s.id
    left join outcome social_end on social_end.run = s.run and social_end.item = s.id
    where r.scraper = 'github' and r.state <> 'removed'
      and not exists (
          select 1 from run n
          join stage g on g.run = n.no and g.name = 'profile'
          join item again on again.stage = g.id and again.key_hash = i.key_hash
          left join lease taken on taken.item = again.id
          left join outcome ended
                 on ended.run = again.run and ended.item = again.id and ended.state <> 'cancelled'
          where n.scraper = r.scraper and n.state <> 'removed' and n.no <> r.no
            and (taken.item is not null or ended.item is not null or again.payload -> 'row' is not null, n.no)
                > (profile_lease.item is not null or coalesce(profile_end.state, 'cancelled') <> 'cancelled'
                   or i.payload -> 'row' is not null, r.no))
) d

-- name: social_links
select x.item * 100 + x.n as id,
       x.record ->> 'username' as username,
       x.record ->> 'platform' as platform,
       x.record ->> 'url' as url,
       x.record ->> 'verified' as verified,
       r.id as run_id
from run r
join stage g on g.run = r.no and g.name = 'social'
join item i on i.stage = g.id
join result x on x.run = i.run and x.item = i.id
where r.scraper = 'github' and r.state <> 'removed' and x.record ->> 'kind' = 'social_link'
  and not exists (select 1 from run n
                  join stage h on h.run = n.no and h.name = 'social'
                  join item again on again.stage = h.id and again.key_hash = i.key_hash
                  join outcome o on o.run = again.run and o.item = again.id and o.state = 'done'
                  where n.scraper = r.scraper and n.state <> 'removed' and n.no > r.no)

-- name: repositories
select x.item * 100 + x.n as id,
       x.record ->> 'username' as username,
       x.record ->> 'name' as name,
       x.record ->> 'stars' as stars,
       x.record ->> 'language' as language,
       x.record ->> 'url' as url,
       x.record ->> 'description' as description,
       x.record ->> 'order' as "order",
       r.id as run_id
from run r
join stage g on g.run = r.no and g.name = 'social'
join item i on i.stage = g.id
join result x on x.run = i.run and x.item = i.id
where r.scraper = 'github' and r.state <> 'removed' and x.record ->> 'kind' = 'repository'
  and not exists (select 1 from run n
                  join stage h on h.run = n.no and h.name = 'social'
                  join item again on again.stage = h.id and again.key_hash = i.key_hash
                  join outcome o on o.run = again.run and o.item = again.id and o.state = 'done'
                  where n.scraper = r.scraper and n.state <> 'removed' and n.no > r.no)
