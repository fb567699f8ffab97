-- Claiming: the next job that may start now, by Redis' own clock.
-- bull_active(KEYS, ARGV) is BullMQ's moveToActive, whole. It takes the tail of the wait list; all that happens here
-- is to decide which job stands there. A tenant's job needs a rate token (GCRA) and a share of the caller's slots.
-- A job without them is passed over where it waits: it is never fetched to be put back. A queue in which no tenant's
-- job was ever seen (meta's hb.tenants is not set) is left to BullMQ alone, which costs nothing.
--   K[1..11] moveToActive's keys, K[12] tats, K[13] the queue's limits, K[14] the tenants' limits in every queue,
--   K[15] this worker's own hash: tenant -> lanes it holds (no other worker reads it)
--   prefix, packed: {token, lockDuration, name} for bull_active, how: what the worker says about itself
--     how.rate, how.burst, how.weight  the queue's default limit        how.slots  the worker's lanes
--     how.look  how far to look into the waiting jobs

local function redis_us()
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2]
end

local function hb_limit(K, how, known, tenant)
  local found = known[tenant]
  if found then return found end
  if tenant == '' then
    found = {rate = 0, burst = 1, weight = 1}
  else
    local own = redis.call('HGET', K[13], tenant) or redis.call('HGET', K[14], tenant)
    local rate, burst, weight
    if own then rate, burst, weight = string.match(own, '^([^:]*):([^:]*):([^:]*)$') end
    found = {
      rate = tonumber(rate) or how.rate,
      burst = math.max(tonumber(burst) or how.burst, 1),
      weight = math.max(tonumber(weight) or how.weight, 1),
    }
  end
  known[tenant] = found
  return found
end

-- Microseconds until this tenant has a token: 0 or less means now.
local function hb_wait(K, limit, tenant, now)
  if limit.rate <= 0 then return 0 end
  local tat = tonumber(redis.call('ZSCORE', K[12], tenant) or 0)
  return tat - (limit.burst - 1) * 1000000 / limit.rate - now
end

local function hb_take(K, limit, tenant, now)
  if limit.rate <= 0 then return end
  local tat = math.max(tonumber(redis.call('ZSCORE', K[12], tenant) or 0), now)
  redis.call('ZADD', K[12], string.format('%.0f', tat + 1000000 / limit.rate), tenant)
  redis.call('ZREMRANGEBYSCORE', K[12], '-inf', string.format('(%.0f', now))
end

-- Due delayed jobs go to wait before we choose, or bull_active would promote and start one that nobody looked at.
local function hb_promote(K, prefix, ms)
  local due = redis.call('ZRANGEBYSCORE', K[7], 0, (ms + 1) * 0x1000 - 1, 'LIMIT', 0, 1000)
  if #due == 0 then return end
  redis.call('ZREM', K[7], unpack(due))
  for _, id in ipairs(due) do
    local key = prefix .. id
    local priority = tonumber(redis.call('HGET', key, 'priority')) or 0
    if priority == 0 then
      redis.call('LPUSH', K[1], id)
    else
      local count = redis.call('INCR', K[10])
      redis.call('ZADD', K[3], priority * 0x100000000 + count % 0x100000000, id)
    end
    redis.call('XADD', K[4], '*', 'event', 'waiting', 'jobId', id, 'prev', 'delayed')
    redis.call('HSET', key, 'delay', 0)
  end
end

-- Look at one waiting job. Returns true when it is the one; fills `seen` with what the others were.
local function hb_fits(K, prefix, how, seen, id, now)
  local opts = redis.call('HGET', prefix .. id, 'opts')
  if not opts then return nil end
  local tenant = string.match(opts, '"tenant":(%d+)') or ''
  local verdict = seen.verdicts[tenant]
  if verdict == nil then
    local limit = hb_limit(K, how, seen.limits, tenant)
    local full = false
    if how.slots > 1 then
      local share = math.max(math.floor(how.slots * limit.weight / (limit.weight + 1)), 1)
      full = tonumber(redis.call('HGET', K[15], tenant) or 0) >= share
    end
    local wait = hb_wait(K, limit, tenant, now)
    if wait > 0 and (not seen.wait or wait < seen.wait) then seen.wait = wait end
    if not full then seen.below = true end
    verdict = (wait <= 0 and not full and 'now') or (wait <= 0 and 'spare') or 'no'
    seen.verdicts[tenant] = verdict
  end
  if verdict == 'now' then
    seen.id, seen.tenant = id, tenant
    return true
  end
  if verdict == 'spare' and not seen.spare then
    seen.spare, seen.spare_tenant, seen.spare_from = id, tenant, seen.from
  end
  return false
end

local function hb_choose(K, prefix, how, now)
  local seen = {verdicts = {}, limits = {}, from = 'wait'}
  local step, at = 1, 1
  -- A tenant with a token but over its share gives way to those near the front: admission keeps our lists about that
  -- short. Jobs without a tenant come past admission and may flood the list, so behind them we look further.
  while at <= how.look and not (seen.spare and seen.spare_tenant ~= '' and at > 2 * how.slots) do
    local ids = redis.call('LRANGE', K[1], -(at + step - 1), -at)
    for i = #ids, 1, -1 do
      local fits = hb_fits(K, prefix, how, seen, ids[i], now)
      if fits then
        seen.tail = at == 1 and i == #ids
        return seen
      end
      if fits == nil then
        redis.call('LREM', K[1], -1, ids[i]) -- its hash is gone: nothing to run
        at = at - 1
      end
    end
    if #ids < step then break end
    at = at + step
    step = 32
  end
  seen.from = 'prioritized'
  local first = 0
  while first < how.look and not (seen.spare and seen.spare_tenant ~= '' and at + first > 2 * how.slots) do
    local ids = redis.call('ZRANGE', K[3], first, first + 31)
    for i = 1, #ids do
      local fits = hb_fits(K, prefix, how, seen, ids[i], now)
      if fits then return seen end
      if fits == nil then
        redis.call('ZREM', K[3], ids[i])
        first = first - 1
      end
    end
    if #ids < 32 then break end
    first = first + 32
  end
  -- A share binds only while somebody below his own share waits.
  if seen.spare and not seen.below then
    seen.id, seen.tenant, seen.from = seen.spare, seen.spare_tenant, seen.spare_from
  end
  return seen
end

local function hb_recover(K, prefix, token)
  for _, id in ipairs(redis.call('LRANGE', K[2], 0, -1)) do
    if redis.call('GET', prefix .. id .. ':lock') == token then
      return {redis.call('HGETALL', prefix .. id), id, 0, 0}
    end
  end
end

local function hb_mixed(K)
  return redis.call('HEXISTS', K[9], 'hb.tenants') == 1
end

-- A lane of this worker is free again.
local function hb_release(K, tenant)
  if redis.call('HINCRBY', K[15], tenant, -1) <= 0 then redis.call('HDEL', K[15], tenant) end
end

-- Put the job that may start now at the tail of the wait list. Returns what was seen (seen.id: that job), or nil when
-- the queue is paused or has all the running jobs it may have; `ending`: how many of these are about to end.
local function hb_pick(K, prefix, how, now, ending)
  local meta = redis.call('HMGET', K[9], 'paused', 'concurrency')
  if meta[1] or (meta[2] and redis.call('LLEN', K[2]) - ending >= tonumber(meta[2])) then return nil end
  hb_promote(K, prefix, math.floor(now / 1000))
  local seen = hb_choose(K, prefix, how, now)
  if seen.id and seen.from == 'prioritized' then
    redis.call('ZREM', K[3], seen.id)
    redis.call('RPUSH', K[1], seen.id)
  elseif seen.id and not seen.tail then
    redis.call('LREM', K[1], -1, seen.id)
    redis.call('RPUSH', K[1], seen.id)
  end
  return seen
end

-- The picked job has been started: take its token, count its lane.
local function hb_started(K, how, seen, now)
  hb_take(K, hb_limit(K, how, seen.limits, seen.tenant), seen.tenant, now)
  redis.call('HINCRBY', K[15], seen.tenant, 1)
  redis.call('EXPIRE', K[15], 86400)
end

-- Nothing may start: {0, 0, ms until a token comes or 0, ms until the next delayed job or 0}. A paused or full queue
-- gives no time: resuming it, or a job that ends, sets the marker.
local function hb_nothing(K, seen, now)
  if not seen then return {0, 0, 0, 0} end
  local delayed = redis.call('ZRANGE', K[7], 0, 0, 'WITHSCORES')
  local due = delayed[2] and math.max(math.ceil(tonumber(delayed[2]) / 0x1000 - now / 1000), 1) or 0
  return {0, 0, seen.wait and math.max(math.ceil(seen.wait / 1000), 1) or 0, due}
end

-- BullMQ's own "nothing": a rate limit's rest in ms, or the time of the next delayed job, which we turn into ms from now.
local function hb_later(result, now)
  local due = tonumber(result[4]) or 0
  if due > 0 then due = math.max(math.ceil(due - now / 1000), 1) end
  return {0, 0, result[3], due}
end

-- again: the reply to the first try was lost, and what it claimed carries our token.
local function hb_claim(K, prefix, packed, how, again)
  if again then
    local found = hb_recover(K, prefix, cmsgpack.unpack(packed)['token'])
    if found then return found end
  end
  local now = redis_us()
  local stamp = string.format('%.0f', math.floor(now / 1000))
  if not hb_mixed(K) then
    local result = bull_active(K, {prefix, stamp, packed})
    return type(result[1]) == 'table' and result or hb_later(result, now)
  end
  how = cmsgpack.unpack(how)
  local seen = hb_pick(K, prefix, how, now, 0)
  if not seen or not seen.id then return hb_nothing(K, seen, now) end
  local result = bull_active(K, {prefix, stamp, packed})
  if type(result[1]) ~= 'table' then return hb_later(result, now) end
  hb_started(K, how, seen, now)
  return result
end
