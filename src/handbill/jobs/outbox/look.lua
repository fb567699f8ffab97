-- How long the queue is, and whose jobs stand near its head. Reads only.
-- KEYS: wait, paused, active, prioritized. ARGV: prefix of job keys, how many to look at.
local prefix = ARGV[1]
local limit = tonumber(ARGV[2])
local ours = 0
local lanes = {}

local function count(ids)
  for _, id in ipairs(ids) do
    local opts = redis.call('HGET', prefix .. id, 'opts')
    if opts then
      local ok, read = pcall(cjson.decode, opts)
      if ok and type(read) == 'table' and read['outbox'] then
        ours = ours + 1
        local lane = type(read['tenant']) == 'number' and string.format('%d', read['tenant']) or '0'
        lanes[lane] = (lanes[lane] or 0) + 1
      end
    end
  end
end

-- Jobs are fetched from the right end of a list, and from the low end of the sorted set.
count(redis.call('LRANGE', KEYS[1], -limit, -1))
count(redis.call('LRANGE', KEYS[2], -limit, -1))
count(redis.call('ZRANGE', KEYS[4], 0, limit - 1))

local out = {
  redis.call('LLEN', KEYS[1]) + redis.call('LLEN', KEYS[2]) + redis.call('ZCARD', KEYS[4]),
  redis.call('LLEN', KEYS[3]),
  ours,
}
for lane, n in pairs(lanes) do
  out[#out + 1] = lane
  out[#out + 1] = n
end
return out
