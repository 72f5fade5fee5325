-- The ledger as the tables that the monitoring queries of the earlier system read. Of a developer who is in several
-- runs, the newest run counts.

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
       (p.record ->> 'hireable')::boolean as hireable,
       (p.record ->> 'followers')::int as followers,
       (p.record ->> 'following')::int as following,
       (p.record ->> 'public_repos')::int as public_repos,
       (p.record ->> 'public_gists')::int as public_gists,
       coalesce(p.record ->> 'profile_url', 'https://github.com/' || i.key) as profile_url,
       p.record ->> 'avatar_url' as avatar_url,
       (p.record ->> 'created_at')::timestamptz as created_at,
       (p.record ->> 'updated_at')::timestamptz as updated_at,
       case when social_lease.item is not null or profile_lease.item is not null then 'PROCESSING'
            when social_end.state = 'done' then 'ENHANCED'
            when social_end.state = 'dead' or profile_end.state = 'dead' then 'FAILED'
            when profile_end.state = 'done' then 'PROFILED'
            else 'INITIAL' end as enrichment_status,
       (select w.id from shoal.worker w
        where w.no = coalesce(social_lease.worker, profile_lease.worker, social_end.worker, profile_end.worker))
           as claimed_by,
       coalesce(social_lease.claimed_at, profile_lease.claimed_at, social_end.claimed_at, profile_end.claimed_at)
           as processing_started_at,
       coalesce((p.record ->> 'scraped_at')::timestamptz, i.created_at) as scraped_at,
       case when profile_end.state = 'done'
            then coalesce((p.record ->> 'profiled_at')::timestamptz, profile_end.ended_at) end as profiled_at,
       case when social_end.state = 'done'
            then coalesce((p.record ->> 'enhanced_at')::timestamptz, social_end.ended_at) end as enhanced_at,
       greatest(coalesce(social_lease.tries, social_later.tries, social_end.tries - 1,
                         profile_lease.tries, profile_later.tries, profile_end.tries - 1, 0), 0) as retry_count,
       coalesce(social_end.error, profile_end.error,
                (select a.error from shoal.attempt a where a.run = i.run and a.item in (i.id, s.id)
                   and a.error is not null and a.outcome <> 'cancelled'
                 order by a.ended_at desc limit 1)) as last_error,
       r.id as run_id
from shoal.run r
join shoal.stage profile on profile.run = r.no and profile.name = 'profile'
join shoal.stage social on social.run = r.no and social.name = 'social'
join shoal.item i on i.stage = profile.id
left join shoal.result p on p.run = i.run and p.item = i.id and p.n = 0
left join shoal.lease profile_lease on profile_lease.item = i.id
left join shoal.delayed profile_later on profile_later.item = i.id
left join shoal.outcome profile_end on profile_end.run = i.run and profile_end.item = i.id
left join shoal.item s on s.stage = social.id and s.key_hash = i.key_hash
left join shoal.lease social_lease on social_lease.item = s.id
left join shoal.delayed social_later on social_later.item = s.id
left join shoal.outcome social_end on social_end.run = s.run and social_end.item = s.id
where r.scraper = 'github' and r.state <> 'removed'
  and not exists (select 1 from shoal.run n
                  join shoal.stage g on g.run = n.no and g.name = 'profile'
                  join shoal.item again on again.stage = g.id and again.key_hash = i.key_hash
                  where n.scraper = r.scraper and n.state <> 'removed' and n.no > r.no)

-- name: social_links
select x.item * 100 + x.n as id,
       x.record ->> 'username' as username,
       x.record ->> 'platform' as platform,
       x.record ->> 'url' as url,
       (x.record ->> 'verified')::boolean as verified,
       r.id as run_id
from shoal.run r
join shoal.stage g on g.run = r.no and g.name = 'social'
join shoal.item i on i.stage = g.id
join shoal.result x on x.run = i.run and x.item = i.id
where r.scraper = 'github' and r.state <> 'removed' and x.record ->> 'kind' = 'social_link'
  and not exists (select 1 from shoal.run n
                  join shoal.stage h on h.run = n.no and h.name = 'social'
                  join shoal.item again on again.stage = h.id and again.key_hash = i.key_hash
                  where n.scraper = r.scraper and n.state <> 'removed' and n.no > r.no)

-- name: repositories
select x.item * 100 + x.n as id,
       x.record ->> 'username' as username,
       x.record ->> 'name' as name,
       (x.record ->> 'stars')::int as stars,
       x.record ->> 'language' as language,
       x.record ->> 'url' as url,
       x.record ->> 'description' as description,
       (x.record ->> 'order')::int as "order",
       r.id as run_id
from shoal.run r
join shoal.stage g on g.run = r.no and g.name = 'social'
join shoal.item i on i.stage = g.id
join shoal.result x on x.run = i.run and x.item = i.id
where r.scraper = 'github' and r.state <> 'removed' and x.record ->> 'kind' = 'repository'
  and not exists (select 1 from shoal.run n
                  join shoal.stage h on h.run = n.no and h.name = 'social'
                  join shoal.item again on again.stage = h.id and again.key_hash = i.key_hash
                  where n.scraper = r.scraper and n.state <> 'removed' and n.no > r.no)
