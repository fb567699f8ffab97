-- What the platform speaks of and nobody has imported, and when the account was last asked what runs there.
alter table adstats.sync_state
    add column unmatched int not null default 0,
    add column listed_at timestamptz;
