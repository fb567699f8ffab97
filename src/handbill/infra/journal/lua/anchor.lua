-- After a loss: makes sure that this lane goes on behind the reader's cursor. KEYS: stream, meta. ARGV: the cursor.
-- Ids follow Redis' clock. A new or wiped Redis whose clock is behind the old one's would give ids that the reader
-- believes to have read already: such entries are appended again behind the cursor. Read twice, they count once.
local ms, sequence = string.match(ARGV[1], '^(%d+)-(%d+)$')
local function behind(id)
  local a, b = string.match(id, '^(%d+)-(%d+)$')
  a, b = tonumber(a), tonumber(b)
  return a < tonumber(ms) or (a == tonumber(ms) and b < tonumber(sequence))
end
local last = redis.call('HGET', KEYS[2], 'last')
if last and not behind(last) then return 0 end
local entries = redis.call('XRANGE', KEYS[1], '-', '+')
local number = tonumber(sequence)
local function add(fields)
  number = number + 1
  return redis.call('XADD', KEYS[1], ms .. '-' .. string.format('%.0f', number), unpack(fields))
end
for _, entry in ipairs(entries) do
  last = add(entry[2])
  redis.call('XDEL', KEYS[1], entry[1])
end
if #entries == 0 then -- an entry that comes and goes leaves its id behind as the stream's last
  last = add({'x', 'x'})
  redis.call('XDEL', KEYS[1], last)
end
redis.call('HSETNX', KEYS[2], 'events', 0)
redis.call('HSETNX', KEYS[2], 'born', ARGV[1])
redis.call('HSET', KEYS[2], 'last', last)
return #entries
