-- Lists, healing and erasure of parked events read by tenant and id; healing also by reason. Parked events are exceptions and
-- the other tables have a row for each batch or erasure, so that the indexes are built at once and counting pays nothing.
create index ix_parked_id on events.parked (tenant_id, id);
create index ix_parked_open on events.parked (tenant_id, reason, id) where replayed_at is null;
drop index events.ix_parked_tenant;
create index ix_ch_batches_done on events.ch_batches (lane, done_at) where done_at is not null and lost_at is null;
create index ix_erasures_open on tenants.erasures (tenant_id, subject_hash) where subject is not null;
