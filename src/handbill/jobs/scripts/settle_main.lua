-- One job ends (bull_settle is moveToFinished, moveToDelayed, retryJob or moveJobFromActiveToWait, whole) and the lane's
-- next one is claimed in the same step.
--   KEYS[1..15] the claim's, then bull_settle's own
--   ARGV: 1 prefix, 2 packed claim options, 3 packed `how`, 4 '1' if again, 5 '1' to claim the next, 6 tenant or '',
--         7 job id, 8 its token, 9 lock ms, 10 where bull_settle's time goes (0: nowhere),
--         11 where bull_settle is told to fetch the next job itself (0: it cannot), then bull_settle's own
-- Returns {verdict, job, id, wait, due}: verdict 0 settled; 1 it had been settled by a first try whose reply was lost;
-- negative as in BullMQ (-2, -6: the lock is another's, the outcome was not written).
local prefix, again, fetch = ARGV[1], ARGV[4] == '1', ARGV[5] == '1'
local id, token, fetch_at = ARGV[7], ARGV[8], tonumber(ARGV[11])
local lock = prefix .. id .. ':lock'

local function hb_next(verdict)
  if not fetch then return {verdict, 0, 0, 0, 0} end
  local next = hb_claim(KEYS, prefix, ARGV[2], ARGV[3], again)
  return {verdict, next[1], next[2], next[3], next[4]}
end

if again and redis.call('GET', lock) ~= token and not redis.call('LPOS', KEYS[2], id) then return hb_next(1) end

local now = redis_us()
local K, A = {}, {}
for i = 16, #KEYS do K[i - 15] = KEYS[i] end
for i = 12, #ARGV do A[i - 11] = ARGV[i] end
if ARGV[10] ~= '0' then A[tonumber(ARGV[10])] = string.format('%.0f', math.floor(now / 1000)) end

-- The common path: choose first, then let BullMQ end the one and fetch the other in one go, under the same token.
local mixed = hb_mixed(KEYS)
local inline = fetch and fetch_at > 0
local how, seen
if mixed then hb_release(KEYS, ARGV[6]) end
if inline and mixed then
  how = cmsgpack.unpack(ARGV[3])
  seen = hb_pick(KEYS, prefix, how, now, 1)
end
if inline and (not mixed or (seen and seen.id)) then A[fetch_at] = '1' end

local result = bull_settle(K, A)
if result == -2 and redis.call('LPOS', KEYS[2], id) then
  -- The lock ran out while Redis was away, but nobody took the job: it is still ours.
  redis.call('SET', lock, token, 'PX', ARGV[9])
  result = bull_settle(K, A)
end

if type(result) == 'table' then
  if type(result[1]) ~= 'table' then
    local none = hb_later(result, now)
    return {0, none[1], none[2], none[3], none[4]}
  end
  if mixed then hb_started(KEYS, how, seen, now) end
  return {0, result[1], result[2], 0, 0}
end

local verdict = result > 0 and 0 or result
if verdict == 0 and inline then
  local none = hb_nothing(KEYS, not mixed and {} or seen, now)
  return {0, none[1], none[2], none[3], none[4]}
end
return hb_next(verdict)
