-- Returns the members and their shares.
-- KEYS: exact accounts, members, replaced, then the block accounts. ARGV: names of exact accounts.
local time = redis.call('TIME')
local exact, blocks = {}, {}
for i = 1, #ARGV do exact[i] = redis.call('HGET', KEYS[1], ARGV[i]) or '' end
for i = 4, #KEYS do blocks[i - 3] = redis.call('HGETALL', KEYS[i]) end
return {
  string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)),
  redis.call('HGETALL', KEYS[2]),
  redis.call('HGETALL', KEYS[3]),
  exact,
  blocks,
}
