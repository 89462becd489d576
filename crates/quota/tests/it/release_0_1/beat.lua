-- Heartbeat of a member. Time advances only here: members expire and rebuilds end.
-- KEYS: exact accounts, members, replaced.
-- ARGV: member, length of its name, kind, TTL in ms, new generation, number of exact accounts to
-- sweep.
-- Members hash: member -> expiry, '!' -> generation:end of its rebuild, '?' -> cursor of the sweep.
-- Exact accounts hash: '#member' -> sequence of a live member, '#' -> whether the store rebuilds (1
-- or 0).
local id, name_length, kind, ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local expires = string.format('%.0f', now + ttl)

local generation = redis.call('HGET', KEYS[2], '!')
local number, rebuilt_at
if generation then
  number, rebuilt_at = string.match(generation, '^(%d+):(%d+)$')
else
  number, rebuilt_at = ARGV[5], expires
  redis.call('HSET', KEYS[2], '!', number .. ':' .. rebuilt_at, '?', 0)
end
local rebuild_left = math.max(0, tonumber(rebuilt_at) - now)
redis.call('HSET', KEYS[1], '#', rebuild_left > 0 and 1 or 0)

-- Live members. Other incarnations of the sender have its name, a colon, and an epoch of sixteen
-- characters.
local members, living, sweep = {}, 0, '0'
local name, namesakes = string.sub(id, 1, name_length) .. ':', {}
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do
  local other, value = all[i], all[i + 1]
  if other == '?' then
    sweep = value
  elseif other ~= '!' then
    if tonumber(value) <= now then
      redis.call('HDEL', KEYS[2], other)
      redis.call('HDEL', KEYS[1], '#' .. other)
    else
      members[other], living = value, living + 1
      if other ~= id and #other == #id and string.sub(other, 1, name_length + 1) == name then
        namesakes[#namesakes + 1] = other
      end
    end
  end
end
local replaced = redis.call('HGETALL', KEYS[3])
for i = 1, #replaced, 2 do
  if tonumber(replaced[i + 1]) <= now then redis.call('HDEL', KEYS[3], replaced[i]) end
end

local standing, sequence = 'unknown', '0'
if redis.call('HEXISTS', KEYS[3], id) == 1 then
  standing = 'replaced'
elseif members[id] and redis.call('HEXISTS', KEYS[1], '#' .. id) == 1 then
  standing, sequence = kind == 'join' and 'joined' or 'alive', redis.call('HGET', KEYS[1], '#' .. id)
  redis.call('HSET', KEYS[2], id, expires)
  if kind == 'take_over' then
    for _, other in ipairs(namesakes) do
      redis.call('HSET', KEYS[3], other, members[other])
      redis.call('HDEL', KEYS[2], other)
      redis.call('HDEL', KEYS[1], '#' .. other)
      members[other], living = nil, living - 1
    end
  end
elseif kind == 'join' then
  standing, living = 'joined', living + (members[id] and 0 or 1)
  redis.call('HSET', KEYS[2], id, expires)
  -- One long value makes Redis store the hash as a hash table. A short hash is a list with linear
  -- search.
  redis.call('HSET', KEYS[1], '#' .. id, 0, '!', string.rep('-', 80))
elseif #namesakes > 0 then
  standing = 'replaced'
end

-- Deletes exact accounts that only expired members hold, a few with each heartbeat.
if standing == 'alive' then
  local found = redis.call('HSCAN', KEYS[1], sweep, 'COUNT', ARGV[6])
  for i = 1, #found[2], 2 do
    local account, holders = found[2][i], found[2][i + 1]
    if string.sub(account, 1, 2) == 'k:' then
      local held = false
      for other in string.gmatch(holders, '([^ ]+)=') do held = held or members[other] end
      if not held then redis.call('HDEL', KEYS[1], account) end
    end
  end
  if found[1] ~= sweep then redis.call('HSET', KEYS[2], '?', found[1]) end
end
return {standing, sequence, number, rebuild_left, living}
