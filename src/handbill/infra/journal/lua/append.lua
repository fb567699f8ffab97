-- One entry with many events. KEYS: stream, meta. ARGV: number of events, the packed events, perhaps their tenants.
-- `p` is the number of events before this entry in the lane's life: the difference of two is a lag in events.
-- `t` are the tenants' numbers, each between commas. It stays the last field: others are found by their place.
-- The stream is written first: when it refuses (memory full), nothing has changed.
local before = tonumber(redis.call('HGET', KEYS[2], 'events') or 0)
local fields = {'p', string.format('%.0f', before), 'n', ARGV[1], 'b', ARGV[2]}
if ARGV[3] then
  fields[7], fields[8] = 't', ARGV[3]
end
local id = redis.call('XADD', KEYS[1], '*', unpack(fields))
redis.call('HSETNX', KEYS[2], 'born', id)
redis.call('HSET', KEYS[2], 'events', string.format('%.0f', before + ARGV[1]), 'last', id)
return id
