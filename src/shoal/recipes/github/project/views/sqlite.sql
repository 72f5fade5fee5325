-- The ledger as the tables that the monitoring queries of the earlier system read. Of a developer who is in several
-- runs, the newest run counts. Times are texts in UTC, hireable and verified are 0 and 1.

-- name: developers
-- A cancellation is an error only while it lasts: an item that was retried afterwards has it in its history.
select i.id,
       coalesce(p.record ->> 'username', i.payload ->> 'username', i.key) as username,
       p.record ->> 'name' as name,
       p.record ->> 'email' as email,
       p.record ->> 'bio' as bio,
       p.record ->> 'location' as location,
       p.record ->> 'company' as company,
       p.record ->> 'blog' as blog,
       p.record ->> 'twitter_username' as twitter_username,
       p.record ->> 'hireable' as hireable,
       p.record ->> 'followers' as followers,
       p.record ->> 'following' as following,
       p.record ->> 'public_repos' as public_repos,
       p.record ->> 'public_gists' as public_gists,
       coalesce(p.record ->> 'profile_url', 'https://github.com/' || i.key) as profile_url,
       p.record ->> 'avatar_url' as avatar_url,
       datetime(p.record ->> 'created_at') as created_at,
       datetime(p.record ->> 'updated_at') as updated_at,
       case when social_lease.item is not null or profile_lease.item is not null then 'PROCESSING'
            when social_end.state = 'done' then 'ENHANCED'
            when social_end.state = 'dead' or profile_end.state = 'dead' then 'FAILED'
            when profile_end.state = 'done' then 'PROFILED'
            else 'INITIAL' end as enrichment_status,
       (select w.id from worker w
        where w.no = coalesce(social_lease.worker, profile_lease.worker, social_end.worker, profile_end.worker))
           as claimed_by,
       strftime('%Y-%m-%d %H:%M:%f', coalesce(social_lease.claimed_at, profile_lease.claimed_at, social_end.claimed_at,
                                           profile_end.claimed_at) / 1e6, 'unixepoch')
           as processing_started_at,
       coalesce(p.record ->> 'scraped_at',
                strftime('%Y-%m-%d %H:%M:%f', i.created_at / 1e6, 'unixepoch')) as scraped_at,
       case when profile_end.state = 'done'
            then coalesce(p.record ->> 'profiled_at',
                          strftime('%Y-%m-%d %H:%M:%f', profile_end.ended_at / 1e6, 'unixepoch')) end as profiled_at,
       case when social_end.state = 'done'
            then coalesce(p.record ->> 'enhanced_at',
                          strftime('%Y-%m-%d %H:%M:%f', social_end.ended_at / 1e6, 'unixepoch')) end as enhanced_at,
       max(coalesce(social_lease.tries, social_later.tries, social_end.tries - 1,
                    profile_lease.tries, profile_later.tries, profile_end.tries - 1, 0), 0) as retry_count,
       coalesce(social_end.error, profile_end.error,
                (select a.error from attempt a where a.item in (i.id, s.id)
                   and a.error is not null and a.outcome <> 'cancelled'
                 order by a.ended_at desc limit 1)) as last_error,
       r.id as run_id
from run r
join stage profile on profile.run = r.no and profile.name = 'profile'
join stage social on social.run = r.no and social.name = 'social'
join item i on i.stage = profile.id
left join result p on p.run = i.run and p.item = i.id and p.n = 0
left join lease profile_lease on profile_lease.item = i.id
left join delayed profile_later on profile_later.item = i.id
left join outcome profile_end on profile_end.item = i.id
left join item s on s.stage = social.id and s.key_hash = i.key_hash
left join lease social_lease on social_lease.item = s.id
left join delayed social_later on social_later.item = s.id
left join outcome social_end on social_end.item = s.id
where r.scraper = 'github' and r.state <> 'removed'
  and not exists (select 1 from run n
                  join stage g on g.run = n.no and g.name = 'profile'
                  join item again on again.stage = g.id and again.key_hash = i.key_hash
                  where n.scraper = r.scraper and n.state <> 'removed' and n.no > r.no)

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
                  where n.scraper = r.scraper and n.state <> 'removed' and n.no > r.no)
