-- Who lives, and who holds what. KEYS: members, replaced, then the accounts.
local time = redis.call('TIME')
local found = {
  string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)),
  redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'),
  redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'),
}
local accounts = {}
for i = 3, #KEYS do accounts[i - 2] = redis.call('HGETALL', KEYS[i]) end
found[4] = accounts
return found
