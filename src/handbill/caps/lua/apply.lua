-- Changes cap values: KEYS[i] is a subject's value, ARGV[i] what happened to it.
-- ARGV[i] = sweep (5 bytes), now (5), then per change: verb (1), scope (4), keep (2), horizon (5), time (5),
-- fingerprint (4), lease (4).

-- The changes by scope, and the scopes in order. Leases sort behind everything else, so that when they are changed it is
-- known which views were new.
local function plan(blob)
  local scopes, by_scope = {}, {}
  local function add(scope, each)
    local mine = by_scope[scope]
    if not mine then
      mine = {}
      by_scope[scope] = mine
      scopes[#scopes + 1] = scope
    end
    mine[#mine + 1] = each
  end
  for at = 11, #blob, 25 do
    local verb, scope, keep, horizon, time, fingerprint, lease = unpack_at('>BI4I2I5I5I4I4', blob, at)
    local each = {verb, keep, horizon, time, fingerprint}
    add(scope, each)
    if lease > 0 and verb == MOVE then add(scope + LEASED, {GIVE_BACK, 0, 0, 0, lease, of = each}) end
  end
  if #scopes > 1 then table.sort(scopes) end
  return scopes, by_scope
end

-- Returns changed (0 or 1) and malformed (0 or 1): bytes that are no value are replaced, and the caller counts it.
local function apply(key, blob)
  local before, malformed = redis.pcall('GET', key), 0
  if type(before) == 'table' then -- not even a string: something else took our key
    redis.call('DEL', key)
    before, malformed = false, 1
  end
  local sweep, now = unpack_at('>I5I5', blob)
  local scopes, by_scope = plan(blob)
  local empty = string.char(1)
  local after, ttl, forever = rewrite(before or empty, scopes, by_scope, now, sweep)
  if not after then
    malformed = 1
    after, ttl, forever = rewrite(empty, scopes, by_scope, now, sweep)
  end
  if after == (before or '') then return 0, malformed end
  store(key, before, after, ttl, forever)
  return 1, malformed
end

local done, malformed, failed, why = 0, 0, 0, ''
for i, key in ipairs(KEYS) do
  local fine, one, two = pcall(apply, key, ARGV[i])
  if fine then
    done, malformed = done + one, malformed + two
  else -- one bad key never stops its neighbours
    failed, why = failed + 1, type(one) == 'table' and one.err or tostring(one)
  end
end
return {done, malformed, failed, why}
