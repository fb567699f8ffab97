-- Take back jobs whose worker is gone. Each stall uses up one of the job's own attempts; with none left the next worker
-- only fails it (`defa`), so that its end is written by the same path as any other.
--   KEYS, ARGV: moveStalledJobsToWait's; ARGV[3] (the time) is filled in here
local now = redis.call('TIME')
ARGV[3] = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
local stalled = bull_sweep(KEYS, ARGV)
for _, id in ipairs(stalled) do
  local key = ARGV[2] .. id
  local opts = redis.call('HGET', key, 'opts') or ''
  local allowed = math.max(tonumber(string.match(opts, '"attempts":(%d+)') or 1), 1)
  if tonumber(redis.call('HGET', key, 'atm') or 0) + 1 >= allowed then
    -- the failure that the next worker writes counts as this attempt
    redis.call('HSET', key, 'defa', 'stalled: its worker was lost in the last of ' .. allowed .. ' attempt(s)')
  else
    redis.call('HINCRBY', key, 'atm', 1)
  end
end
return stalled
