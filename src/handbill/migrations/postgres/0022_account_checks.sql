-- When the platform last confirmed an ad account's currency, time zone and access. Connections of earlier releases have not
-- been verified; their next sync asks.
alter table adstats.fb_connections add column verified_at timestamptz;
