-- How far a cursor is behind. KEYS: stream, meta. ARGV: the cursor.
-- Returns: events in the lane's life, first id, last id, now in ms, and of the first entry behind the cursor: id, p.
local meta = redis.call('HMGET', KEYS[2], 'events', 'born', 'last')
local time = redis.call('TIME')
local reply = {meta[1] or '', meta[2] or '', meta[3] or '',
  string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))}
local first = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', 1)[1]
if first then
  reply[5] = first[1]
  reply[6] = first[2][2]
end
return reply
