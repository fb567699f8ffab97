-- A worker that has jobs says that it lives. Whoever has said so once is taken for dead when it stops saying so (release_dead).
--   KEYS: workers, alive   ARGV: worker id, ms
redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
redis.call('HSET', KEYS[1], ARGV[1], 0)
return 1
