-- The estimate that a campaign was started with, to be compared with its outcome.
alter table messaging.campaigns add column estimate jsonb;

-- Failures told by webhook with one code in a row, none of them delivered between: the campaign is at fault, not the people.
alter table messaging.campaigns add column failed_code int;
alter table messaging.campaigns add column failed_in_row int not null default 0;

-- A connection may have more than 100 numbers.
alter table messaging.campaigns drop constraint campaigns_numbers_check;
alter table messaging.campaigns add constraint ck_campaigns_numbers check (cardinality(numbers) <= 1000) not valid;
alter table messaging.campaigns validate constraint ck_campaigns_numbers;

-- A tenant's own opt-out and opt-in words. No row: the defaults of every language.
create table messaging.opt_out_words (
    tenant_id  int primary key references tenants.tenants (tenant_id),
    languages  text[],                                   -- whose defaults count; null: those of all languages
    stop       text[] not null default '{}' check (cardinality(stop) <= 100),
    start      text[] not null default '{}' check (cardinality(start) <= 100),
    without    text[] not null default '{}' check (cardinality(without) <= 100),
    version    int not null default 1,
    updated_at timestamptz not null
);
select handbill_wall('messaging.opt_out_words'::regclass);
