-- Reading and rewriting packed cap values where they lie; the scripts beside this one are its continuations.
-- The form of a value is drawn in packed.py, the rules stand in ledger.py; a test holds all of them together, byte by byte.
-- Times are milliseconds since 2024. Time comes in as an argument: one millisecond for cap, journal and row.
-- Numbers are compared, never strings: string order in Lua follows the server's locale.
-- Only the scopes that change are decoded; everything between them is copied as it is.
local FOREVER, OPEN, SLACK, MOST, RECORD = 549755813887, 604800000, 60000, 1000, 9
local LEASED, ANY = 2147483648, 4294967295
local MOVE, CONFIRM, TAKE_BACK, GIVE_BACK = 1, 2, 3, 4
local MOVED, CONFIRMED = 0, 1
local pack, unpack_at, byte, sub = struct.pack, struct.unpack, string.byte, string.sub

-- Times of one scope as {time, fingerprint, state}, newest first.
local function decode(value, start, stop)
  local list = {}
  for at = start, stop, RECORD do
    local head, fingerprint = unpack_at('>I5I4', value, at)
    local state = head % 2
    list[#list + 1] = {(head - state) / 2, fingerprint, state}
  end
  return list
end

local function encode(scope, list, endless)
  local count, flag = #list, endless and 128 or 0
  local parts = {}
  if count < 64 then
    parts[1] = pack('>I4B', scope, flag + count)
  else
    parts[1] = pack('>I4BB', scope, flag + 64 + math.floor(count / 256), count % 256)
  end
  for i, seen in ipairs(list) do
    parts[i + 1] = pack('>I5I4', seen[1] * 2 + seen[3], seen[2])
  end
  return table.concat(parts)
end

local function insert(list, seen)
  local at = 1
  while list[at] and (list[at][1] > seen[1] or (list[at][1] == seen[1] and list[at][2] > seen[2])) do
    at = at + 1
  end
  table.insert(list, at, seen)
end

-- Whether the event was not there before.
local function change(list, verb, time, fingerprint)
  local at, there
  for i, seen in ipairs(list) do
    if seen[2] == fingerprint then at, there = i, seen break end
  end
  if verb == TAKE_BACK then
    if there and there[3] == MOVED and there[1] == time then table.remove(list, at) end
    return false
  end
  local state = verb == CONFIRM and CONFIRMED or MOVED
  if there then
    if state < there[3] or (state == there[3] and time >= there[1]) then return false end
    table.remove(list, at)
  end
  insert(list, {time, fingerprint, state})
  return not there
end

-- Committed times go when expired or beyond `keep`: PostgreSQL has them. Unconfirmed ones stay.
local function trim(list, keep, horizon, now)
  local left, confirmed = {}, 0
  for _, seen in ipairs(list) do
    local age = now - seen[1]
    if horizon == FOREVER or age < horizon or (seen[3] == MOVED and age < OPEN) then
      if seen[3] == CONFIRMED then confirmed = confirmed + 1 end
      if (seen[3] ~= CONFIRMED or confirmed <= keep) and #left < MOST then left[#left + 1] = seen end
    end
  end
  return left
end

-- Leases that have ended go.
local function live(list, now)
  local left = {}
  for _, seen in ipairs(list) do
    if seen[1] > now then left[#left + 1] = seen end
  end
  return left
end

-- A lease by its number; or, for a view that was not there before, the one that ends first.
local function give_back(list, number, fresh)
  if number == ANY then
    if fresh then table.remove(list) end
    return
  end
  for i, seen in ipairs(list) do
    if seen[2] == number then table.remove(list, i) return end
  end
end

-- A scope's leases after these changes, and how long they must be kept.
local function leased(scope, list, changes, now)
  list = live(list, now)
  for _, each in ipairs(changes) do
    if each[1] == GIVE_BACK then
      give_back(list, each[5], each.of.fresh)
    else
      change(list, each[1], each[4], each[5])
      list = live(list, now)
    end
  end
  if #list == 0 then return '', 0, false end
  return encode(scope, list, false), list[1][1] - now + SLACK, false
end

-- One scope's changes. Returns its bytes (empty: nothing is left), how long they must be kept, and whether for ever.
local function changed(scope, list, changes, now, sweep)
  if scope >= LEASED then return leased(scope, list, changes, now) end
  local ttl, endless, ever = 0, false, false
  for _, each in ipairs(changes) do
    local horizon = each[3]
    each.fresh = change(list, each[1], each[4], each[5])
    list = trim(list, each[2], horizon, now)
    endless = horizon == FOREVER
    if endless then
      ever = true
    elseif list[1] then
      ttl = math.max(ttl, list[1][1] + horizon - now + SLACK)
    end
  end
  if #list == 0 or not (endless or now - list[1][1] < sweep) then return '', ttl, ever end
  return encode(scope, list, endless), ttl, ever
end

-- Where a scope begins: its number, whether for ever, its newest time, its first record, and what comes after it.
local function scope_at(value, at, size)
  if at + 4 + RECORD > size then return nil end -- a scope has at least one time
  local scope, count, head = unpack_at('>I4BI5', value, at)
  local start = at + 5
  local endless = count >= 128
  if endless then count = count - 128 end
  if count >= 64 then
    count = (count - 64) * 256 + byte(value, start)
    start = start + 1
    if start + 4 > size then return nil end
    head = unpack_at('>I5', value, start)
  end
  local after = start + count * RECORD
  if count == 0 or after - 1 > size then return nil end
  return scope, endless, math.floor(head / 2), start, after
end

-- Walks the value once and writes it anew. nil when the bytes are no packed value.
local function rewrite(value, scopes, by_scope, now, sweep)
  local parts, size, at, from = {}, #value, 2, 2
  local next_one, ttl, forever = 1, 0, false
  if byte(value, 1) ~= 1 then return nil end
  local function put(scope, list)
    local bytes, keep, ever = changed(scope, list, by_scope[scope], now, sweep)
    parts[#parts + 1] = bytes
    ttl, forever = math.max(ttl, keep), forever or ever
    next_one = next_one + 1
  end
  while at <= size do
    local scope, endless, newest, start, after = scope_at(value, at, size)
    if not scope then return nil end
    local due = scopes[next_one]
    local dead
    if scope >= LEASED then dead = newest <= now else dead = not endless and now - newest >= sweep end
    if dead or (due and due <= scope) then
      parts[#parts + 1] = sub(value, from, at - 1)
      from = at
      while scopes[next_one] and scopes[next_one] < scope do put(scopes[next_one], {}) end
      if scopes[next_one] == scope then
        put(scope, decode(value, start, after - 1))
        from = after
      elseif dead then
        from = after
      end
    end
    at = after
  end
  parts[#parts + 1] = sub(value, from)
  while scopes[next_one] do put(scopes[next_one], {}) end
  local body = table.concat(parts)
  return body == '' and '' or string.char(1) .. body, ttl, forever
end

local function store(key, before, after, ttl, forever)
  if after == '' then
    if before then redis.call('DEL', key) end
    return
  end
  local left = before and redis.call('PTTL', key) or 0
  if forever or left == -1 then
    redis.call('SET', key, after)
  else
    redis.call('SET', key, after, 'PX', string.format('%.0f', math.max(left, ttl, SLACK)))
  end
end

