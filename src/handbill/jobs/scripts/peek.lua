-- How many jobs each tenant could start now and within the horizon, by Redis' clock. Takes nothing.
--   KEYS: tats, the queue's limits, the tenants' limits   ARGV: horizon ms, rate, burst, tenant...
local now = redis.call('TIME')
local us = now[1] * 1000000 + now[2]
local found = {}
for i = 4, #ARGV do
  local tenant = ARGV[i]
  local own = redis.call('HGET', KEYS[2], tenant) or redis.call('HGET', KEYS[3], tenant)
  local rate, burst
  if own then rate, burst = string.match(own, '^([^:]*):([^:]*):') end
  rate, burst = tonumber(rate) or tonumber(ARGV[2]), math.max(tonumber(burst) or tonumber(ARGV[3]), 1)
  if tenant == '' or rate <= 0 then
    found[#found + 1] = 1000000
  else
    local step = 1000000 / rate
    local tat = math.max(tonumber(redis.call('ZSCORE', KEYS[1], tenant) or 0), us)
    local room = us + tonumber(ARGV[1]) * 1000 + burst * step - tat
    found[#found + 1] = math.max(math.floor(room / step + 0.000001), 0)
  end
end
return found
