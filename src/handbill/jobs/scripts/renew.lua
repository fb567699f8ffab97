-- Extend the locks of running jobs. A lock that ran out while Redis was away is taken again if nobody else has the job.
--   KEYS: stalled, active   ARGV: prefix, lock ms, packed {id, token, id, token, ...}
-- Returns {ids that are no longer ours, id, reason, ... of jobs that somebody asked to abort}
local pairs_, lost, aborted = cmsgpack.unpack(ARGV[3]), {}, {}
for i = 1, #pairs_, 2 do
  local id, token = pairs_[i], pairs_[i + 1]
  local lock = ARGV[1] .. id .. ':lock'
  local holder = redis.call('GET', lock)
  if holder == token or (not holder and redis.call('LPOS', KEYS[2], id)) then
    redis.call('SET', lock, token, 'PX', ARGV[2])
    redis.call('SREM', KEYS[1], id)
    local reason = redis.call('HGET', ARGV[1] .. id, 'hb.abort')
    if reason then
      aborted[#aborted + 1] = id
      aborted[#aborted + 1] = reason
    end
  else
    lost[#lost + 1] = id
  end
end
return {lost, aborted}
