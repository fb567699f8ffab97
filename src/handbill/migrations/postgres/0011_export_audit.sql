-- A batch is done when its rows were counted in ClickHouse. An auditor counts them once more before the journal lets go
-- of the events, and exports what is missing again.
alter table events.ch_batches
    add column audited_at  timestamptz,                  -- counted a second time, after a while
    add column requeued_at timestamptz,                  -- the auditor found rows missing and had it exported again
    add column lost_events int;                          -- rows that are in neither store; none: the whole batch, if lost_at
update events.ch_batches set audited_at = done_at where done_at is not null;
create index ix_ch_batches_unaudited on events.ch_batches (done_at, id) where done_at is not null and audited_at is null;
