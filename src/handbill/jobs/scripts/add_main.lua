-- Add a job stamped with Redis' own time, and say whether it was added or already there.
--   KEYS the add script's own, then the id counter and the meta hash
--   ARGV: prefix, custom id or '', packed head, packed tail (the time goes between), data, packed opts, '1' if a tenant's
local counter, meta = KEYS[#KEYS - 1], KEYS[#KEYS]
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local custom = ARGV[2]
if custom ~= '' and redis.call('EXISTS', ARGV[1] .. custom) == 1 then
  return {bull_add(KEYS, {ARGV[3] .. cmsgpack.pack(ms) .. ARGV[4], ARGV[5], ARGV[6], ms}), 0}
end
local id = bull_add(KEYS, {ARGV[3] .. cmsgpack.pack(ms) .. ARGV[4], ARGV[5], ARGV[6], ms})
if type(id) == 'number' and id < 0 then return {id, 0} end
local mine = custom ~= '' and custom or redis.call('GET', counter)
if tostring(id) ~= mine then return {id, 0} end
if ARGV[7] == '1' then redis.call('HSET', meta, 'hb.tenants', 1) end
return {id, 1}
