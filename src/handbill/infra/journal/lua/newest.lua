-- The newest entries of a lane, for a reader that wants those of some tenants only. KEYS: stream.
-- ARGV: the cursor, most entries, most bytes, and the numbers of the tenants.
-- Entries are looked at from the newest back to the cursor, until there are enough. The events of an entry are
-- returned only if one of the tenants has events in it; an entry of an older release names no tenants: it is returned.
-- Returns: id of the newest entry, events in the lane's life after it, `p` of the oldest entry that was looked at, and
-- the packed events, oldest first. Nothing when nothing is behind the cursor.
local entries, bytes = tonumber(ARGV[2]), tonumber(ARGV[3])
local before, newest, total, oldest = '+', nil, nil, nil
local found = {}
while entries > 0 and bytes > 0 do
  local entry = redis.call('XREVRANGE', KEYS[1], before, '(' .. ARGV[1], 'COUNT', 1)[1]
  if not entry then break end
  local fields = entry[2] -- p, n, b and perhaps t, each after its name
  oldest = fields[2]
  if not newest then
    newest = entry[1]
    total = string.format('%.0f', tonumber(fields[2]) + tonumber(fields[4]))
  end
  local wanted = not fields[8]
  for place = 4, #ARGV do
    wanted = wanted or string.find(fields[8], ',' .. ARGV[place] .. ',', 1, true) ~= nil
  end
  if wanted then table.insert(found, 1, fields[6]) end
  entries, bytes = entries - 1, bytes - #fields[6]
  before = '(' .. entry[1]
end
if not newest then return {} end
return {newest, total, oldest, found}
