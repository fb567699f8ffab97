-- Every event once: a batch is inserted under its group's token, and a repetition of it is dropped by the window.
-- person_id is the person that the distinct id would be alone (UUIDv5 of "tenant:distinct_id"), or, once the id was
-- squashed, its person when the row was made. Who it is by now stands in the overrides, which hold for all of an id's rows.
create table if not exists events (
    tenant_id       UInt32,
    at              DateTime64(3, 'UTC') codec(DoubleDelta, ZSTD(1)),
    received        DateTime64(3, 'UTC') codec(DoubleDelta, ZSTD(1)),
    event           LowCardinality(String),
    event_id        String codec(ZSTD(1)),
    event_key       FixedString(16) codec(NONE),
    distinct_id     String codec(ZSTD(1)),
    person_id       UUID codec(ZSTD(1)),
    session_id      String codec(ZSTD(1)),
    properties      String codec(ZSTD(3)),
    set             String codec(ZSTD(3)),
    set_once        String codec(ZSTD(3)),
    unset           String codec(ZSTD(3)),
    url             String codec(ZSTD(3)),
    referrer        String codec(ZSTD(3)),
    country         LowCardinality(String),
    browser         LowCardinality(String),
    browser_version LowCardinality(String),
    os              LowCardinality(String),
    os_version      LowCardinality(String),
    device_type     LowCardinality(String),
    language        LowCardinality(String),
    timezone        LowCardinality(String),
    screen_width    Nullable(UInt16),
    screen_height   Nullable(UInt16),
    ip              String codec(ZSTD(1)),
    user_agent      String codec(ZSTD(3)),
    lib             LowCardinality(String),
    source          LowCardinality(String),
    banner_id       UInt32,
    placement_id    UInt32,
    campaign_id     UInt32,
    marks           Array(LowCardinality(String)),
    retention       UInt16,
    index ix_event_key event_key type bloom_filter(0.01) granularity 1,
    index ix_distinct_id distinct_id type bloom_filter(0.01) granularity 1
)
engine = MergeTree
partition by (retention, toYYYYMM(at))
order by (tenant_id, toDate(at), event, at, event_key)
settings non_replicated_deduplication_window = 10000, index_granularity = 8192;

-- What the engine thinks of rows, without keeping them: a refused insert is searched for its poison here.
create table if not exists events_trial as events engine = Null;

-- For each id that moved: its person now. The highest version holds. Versions are twice those of people.distinct_ids;
-- the odd ones in between say that the rows have the person themselves by now, and the override is over.
create table if not exists person_distinct_id_overrides (
    tenant_id   UInt32,
    distinct_id String,
    person_id   UUID,
    version     UInt64,
    deleted     UInt8
)
engine = ReplacingMergeTree(version, deleted)
order by (tenant_id, distinct_id)
settings non_replicated_deduplication_window = 0, allow_experimental_replacing_merge_with_cleanup = 1;

-- Each event by its person, never twice:
--   select uniqExact(if(empty(o.distinct_id), e.person_id, o.person_id))
--   from events e
--   left join (
--       select distinct_id, argMax(person_id, version) as person_id from person_distinct_id_overrides
--       where tenant_id = {tenant:UInt32} group by distinct_id having argMax(deleted, version) = 0
--   ) o on o.distinct_id = e.distinct_id
--   where e.tenant_id = {tenant:UInt32} and ...
