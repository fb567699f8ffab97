-- The order of events: (at, micros, sequence, event_id). `at` is part of the table's key, so that its precision cannot be
-- changed: the microseconds beyond it have a column of their own. Events of earlier releases have 0 in both.
alter table events add column if not exists micros UInt16 codec(T64, ZSTD(1));
alter table events add column if not exists sequence UInt64 codec(DoubleDelta, ZSTD(1));
alter table events_trial add column if not exists micros UInt16;
alter table events_trial add column if not exists sequence UInt64;
