-- The properties that each person has now, as PostgreSQL has folded them; of somebody without any there is no row, or a deleted
-- one. The highest version holds. Events find their person by their id and its override.
create table if not exists person_properties (
    tenant_id  UInt32,
    person_id  UUID,
    properties String codec(ZSTD(3)),
    version    UInt64,
    deleted    UInt8
)
engine = ReplacingMergeTree(version, deleted)
order by (tenant_id, person_id)
settings non_replicated_deduplication_window = 0, allow_experimental_replacing_merge_with_cleanup = 1;
