-- Know, beyond its people: what the edge, the shipping, the segments and the read side keep.

-- Product events a tenant may send a day; none: the installation's own figure.
alter table tenants.tenants add column event_quota bigint check (event_quota >= 0);
