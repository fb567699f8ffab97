-- Which variant of a banner was shown: clicks and views have it already. Adding an empty column rewrites no row.
alter table banners.banner_impressions add column variant text;
