-- Take the locks of workers that stopped saying that they live, so that the sweep gives their jobs back at once. A worker is
-- dead when it was silent at two looks at least ARGV[2] ms apart: while Redis was away everybody was silent.
--   KEYS: workers, active, stalled, stalled-check   ARGV: prefix, ms
-- Returns the ids of the jobs whose locks were taken
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local workers, dead, any = redis.call('HGETALL', KEYS[1]), {}, false
for i = 1, #workers, 2 do
  local id, since = workers[i], tonumber(workers[i + 1]) or 0
  if redis.call('EXISTS', ARGV[1] .. 'hb:alive:' .. id) == 1 then
    if since ~= 0 then redis.call('HSET', KEYS[1], id, 0) end
  elseif since == 0 then
    redis.call('HSET', KEYS[1], id, string.format('%.0f', now))
  elseif now - since >= tonumber(ARGV[2]) then
    dead[id], any = true, true
  end
end
local released = {}
if not any then return released end
for _, job in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
  local lock = ARGV[1] .. job .. ':lock'
  local token = redis.pcall('GET', lock)
  if type(token) == 'string' and dead[string.match(token, '^(.*):')] then
    redis.call('DEL', lock)
    redis.call('SADD', KEYS[3], job)
    released[#released + 1] = job
  end
end
for id in pairs(dead) do
  redis.call('HDEL', KEYS[1], id)
  redis.call('DEL', ARGV[1] .. 'hb:held:' .. id)
end
if #released > 0 then redis.call('DEL', KEYS[4]) end
return released
