-- A claimed job whose id or link to its parent cannot be read gets an id of our own and loses the link: with them no
-- script could end it, and it would come back after each sweep for ever. `defa` makes the worker fail it.
--   KEYS: active, stalled   ARGV: prefix, the job's id, the lock's token, '1' if the id is to be replaced, the reason
-- Returns the id by which the job is found from now on, or false: the lock is another's.
local prefix, id, token = ARGV[1], ARGV[2], ARGV[3]
local key = prefix .. id
if redis.call('GET', key .. ':lock') ~= token then return false end
redis.call('HDEL', key, 'parent', 'parentKey')
redis.call('HSET', key, 'defa', ARGV[5])
if ARGV[4] ~= '1' then return id end
local new = 'unreadable-' .. redis.sha1hex(id .. token)
for _, part in ipairs({'', ':lock', ':logs'}) do
  if redis.call('EXISTS', key .. part) == 1 then redis.call('RENAME', key .. part, prefix .. new .. part) end
end
if redis.call('LREM', KEYS[1], -1, id) > 0 then redis.call('LPUSH', KEYS[1], new) end
if redis.call('SREM', KEYS[2], id) > 0 then redis.call('SADD', KEYS[2], new) end
local deduplication = redis.call('HGET', prefix .. new, 'deid')
if deduplication and redis.call('GET', prefix .. 'de:' .. deduplication) == id then
  redis.call('SET', prefix .. 'de:' .. deduplication, new, 'KEEPTTL')
end
return new
