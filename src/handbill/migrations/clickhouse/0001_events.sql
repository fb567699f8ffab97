-- Every event once. Rows do not depend on the order of arrival: person_id is written as the person that the distinct id
-- would be alone (UUIDv5 of "tenant:distinct_id"); who it is by now stands in the overrides, until they are squashed.
create table if not exists events (
    tenant_id     UInt32,
    at            DateTime64(3, 'UTC') codec(DoubleDelta, ZSTD(1)),
    received      DateTime64(3, 'UTC') codec(DoubleDelta, ZSTD(1)),
    event         LowCardinality(String),
    event_id      String codec(ZSTD(1)),
    event_key     FixedString(16) codec(NONE),
    distinct_id   String codec(ZSTD(1)),
    person_id     UUID codec(ZSTD(1)),
    session_id    String codec(ZSTD(1)),
    properties    String codec(ZSTD(3)),
    set           String codec(ZSTD(3)),
    set_once      String codec(ZSTD(3)),
    url           String codec(ZSTD(3)),
    referrer      String codec(ZSTD(3)),
    country       LowCardinality(String),
    browser       LowCardinality(String),
    os            LowCardinality(String),
    device_type   LowCardinality(String),
    language      LowCardinality(String),
    timezone      LowCardinality(String),
    screen_width  Nullable(UInt16),
    screen_height Nullable(UInt16),
    ip            String codec(ZSTD(1)),
    user_agent    String codec(ZSTD(3)),
    lib           LowCardinality(String),
    source        LowCardinality(String),
    banner_id     UInt32 default 0,
    placement_id  UInt32 default 0,
    campaign_id   UInt32 default 0,
    marks         Array(LowCardinality(String)),
    retention     UInt16 default 0
)
engine = MergeTree
partition by (retention, toYYYYMM(at))
order by (tenant_id, toDate(at), event, cityHash64(distinct_id), at, event_key)
settings non_replicated_deduplication_window = 10000, index_granularity = 8192;

-- For each id that moved: its person now. The highest version holds; versions come from people.distinct_ids.
create table if not exists person_distinct_id_overrides (
    tenant_id   UInt32,
    distinct_id String,
    person_id   UUID,
    version     UInt64,
    deleted     UInt8 default 0
)
engine = ReplacingMergeTree(version, deleted)
order by (tenant_id, distinct_id)
settings non_replicated_deduplication_window = 10000;

-- Each event by its person, never twice:
--   select uniq(if(o.distinct_id = '', e.person_id, o.person_id))
--   from events e
--   left join (
--       select distinct_id, argMax(person_id, version) as person_id from person_distinct_id_overrides
--       where tenant_id = {tenant:UInt32} group by distinct_id having argMax(deleted, version) = 0
--   ) o on o.distinct_id = e.distinct_id
--   where e.tenant_id = {tenant:UInt32} and ...
