-- Holds one slot in each of some scopes of KEYS[1] until a given time, or none at all.
-- ARGV[1] = now (5 bytes), until (5), number (4), then per scope: scope (4), windows (1), and per window: x (2), y (5).
-- Returns the number; 0 where a window has no room; -1 where the bytes are no packed value.

-- Where the records of each scope lie. nil when the bytes are no packed value.
local function places(value)
  local found, at, size = {}, 2, #value
  if byte(value, 1) ~= 1 then return nil end
  while at <= size do
    local scope, _, _, start, after = scope_at(value, at, size)
    if not scope then return nil end
    found[scope] = {start, after - 1}
    at = after
  end
  return found
end

-- Views younger than y and slots that are held must be fewer than x.
local function has_room(value, place, leases, x, y, now)
  local nth = x - leases
  if nth <= 0 then return false end
  if not place or (place[2] - place[1] + 1) / RECORD < nth then return true end
  local head = unpack_at('>I5', value, place[1] + (nth - 1) * RECORD)
  return now - math.floor(head / 2) >= y
end

local function grant(key, blob)
  local before = redis.pcall('GET', key)
  if type(before) == 'table' then return -1 end
  local value = before or string.char(1)
  local found = places(value)
  if not found then return -1 end
  local now, till, number = unpack_at('>I5I5I4', blob)
  local scopes, by_scope = {}, {}
  local at = 15
  while at <= #blob do
    local scope, windows = unpack_at('>I4B', blob, at)
    at = at + 5
    local slot = scope + LEASED
    local held = found[slot] and live(decode(value, found[slot][1], found[slot][2]), now) or {}
    for _, seen in ipairs(held) do
      if seen[2] == number then return 0 end
    end
    for _ = 1, windows do
      local x, y = unpack_at('>I2I5', blob, at)
      at = at + 7
      if not has_room(value, found[scope], #held, x, y, now) then return 0 end
    end
    scopes[#scopes + 1] = slot
    by_scope[slot] = {{MOVE, 1, 0, till, number}}
  end
  table.sort(scopes)
  local after, ttl = rewrite(value, scopes, by_scope, now, FOREVER)
  store(key, before, after, ttl, false)
  return number
end

return grant(KEYS[1], ARGV[1])
