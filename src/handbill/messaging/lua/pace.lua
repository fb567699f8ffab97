-- Tokens for some messages of one number, in their order; taken right before the requests are written.
-- KEYS: number, tenant, then one key per person. ARGV: interval and burst of number, tenant (interval 0: no limit), pair;
-- then how many microseconds ahead tokens of number and tenant may be reserved (0: only those that are there). What is
-- reserved is gone for everybody else at once; the caller waits for the time in the answer before it sends.
-- Answer: microseconds until the next token of number or tenant (0: none was missing), then per message
-- 0 = taken, n > 0 = this person only in n microseconds, -1 = no token left.
-- The rule is limits.take, in whole microseconds. A number or tenant that Redis has never heard of, or has forgotten,
-- begins with its burst spent: a wiped Redis lets nobody go faster.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local intervals = {tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[5])}
local bursts = {tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(ARGV[6])}

local function kept(key)
  local found = redis.call('GET', key)
  return found and tonumber(found) or nil
end

local tats = {}
for i = 1, 2 do
  tats[i] = kept(KEYS[i]) or (now + (bursts[i] - 1) * intervals[i])
end

local reserve = tonumber(ARGV[7])
local answer, wait = {0}, 0
for place = 3, #KEYS do
  if wait > reserve then
    answer[#answer + 1] = -1
  else
    for i = 1, 2 do
      if intervals[i] > 0 then
        wait = math.max(wait, tats[i] - (bursts[i] - 1) * intervals[i] - now)
      end
    end
    if wait > reserve then
      answer[#answer + 1] = -1
    else
      local pair = kept(KEYS[place]) or 0
      local earliest = pair - (bursts[3] - 1) * intervals[3]
      if now < earliest then
        answer[#answer + 1] = earliest - now
      else
        pair = math.max(pair, now) + intervals[3]
        redis.call('SET', KEYS[place], string.format('%.0f', pair), 'PX', math.ceil((pair - now) / 1000) + 1000)
        for i = 1, 2 do
          if intervals[i] > 0 then tats[i] = math.max(tats[i], now) + intervals[i] end
        end
        answer[#answer + 1] = 0
      end
    end
  end
end
for i = 1, 2 do
  if intervals[i] > 0 then
    local life = math.ceil((tats[i] - now) / 1000) + 5000
    redis.call('SET', KEYS[i], string.format('%.0f', tats[i]), 'PX', life)
  end
end
answer[1] = math.max(wait, 0)
return answer
