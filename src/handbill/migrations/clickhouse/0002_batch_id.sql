-- Which committed batch a row came with: rows are counted by it before the batch is done. Ids of batches grow with time,
-- and so do those in a part of the table, so the smallest and largest of a granule lead to the parts of a batch.
alter table events add column if not exists batch_id FixedString(16) codec(ZSTD(1));
alter table events add index if not exists ix_batch_id batch_id type minmax granularity 1;
