-- The driver stores the first and the last moment of its calendar as infinite, and reads an infinite one without a zone:
-- one such row stopped the decisions of its tenant. An open end says the same; an end before all time becomes 1970.
-- All of these tables are short. The role sees the rows of all tenants, as the owner of the tables may not.
set local role handbill_worker;
update banners.banners set publish_at = null where publish_at = '-infinity';
update banners.banners set publish_at = '9999-12-31 23:59:59+00' where publish_at = 'infinity';
update banners.banners set expires_at = null where expires_at = 'infinity';
update banners.banners set expires_at = '1970-01-01 00:00:00+00' where expires_at = '-infinity';
update banners.campaigns set starts_at = null where starts_at = '-infinity';
update banners.campaigns set starts_at = '9999-12-31 23:59:59+00' where starts_at = 'infinity';
update banners.campaigns set ends_at = null where ends_at = 'infinity';
update banners.campaigns set ends_at = '1970-01-01 00:00:00+00' where ends_at = '-infinity';
update tenants.api_keys set expires_at = '9999-12-31 23:59:59+00' where expires_at = 'infinity';
reset role;
