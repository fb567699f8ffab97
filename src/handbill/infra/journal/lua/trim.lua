-- Forgets entries before a cursor, but none younger than ARGV[2] milliseconds. KEYS: stream. ARGV: ms, age, sequence.
local time = redis.call('TIME')
local young = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[2]
local ms, sequence = tonumber(ARGV[1]), ARGV[3]
if young < ms then ms, sequence = young, '0' end
if ms < 0 then return 0 end
return redis.call('XTRIM', KEYS[1], 'MINID', '=', string.format('%.0f', ms) .. '-' .. sequence)
