-- Forgetting old event keys reads the table in ranges of pages, each in a short statement, and notes here which key was the
-- oldest that stayed. A range whose oldest key is young enough is not read again until that key is old. No index on the keys:
-- counting pays nothing for it.
create table events.key_ranges (                         -- belongs to the installation, not to a tenant
    pages       int not null,                            -- length of the range
    first_page  bigint not null,                         -- the same pages of every partition
    oldest_time timestamptz not null,                    -- no key in it was stored before; if there was none, when it was read
    primary key (pages, first_page)
);
grant select, insert, update, delete on events.key_ranges to handbill_worker;
