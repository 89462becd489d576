-- A sign of life. The rule is core/ledger.rs, `beat`.
-- KEYS: members, replaced, exact accounts. ARGV: member, length of its name, kind, ttl in ms, new generation, how many exact
-- accounts to look through.
-- Members are a hash: member -> expiry:sequence, '!' -> generation:end of its rebuilding, '?' -> where the sweep stands.
local id, name_length, kind, ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local expires = string.format('%.0f', now + ttl)

local generation = redis.call('HGET', KEYS[1], '!')
if not generation then
  generation = ARGV[5] .. ':' .. expires
  redis.call('HSET', KEYS[1], '!', generation, '?', 0)
end

-- The living; those of the same name are a name, a colon, and an epoch of sixteen characters.
local members, living, sweep = {}, 0, '0'
local name, namesakes = string.sub(id, 1, name_length) .. ':', {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local other, value = all[i], all[i + 1]
  if other == '?' then
    sweep = value
  elseif other ~= '!' then
    if tonumber(string.match(value, '^%d+')) <= now then
      redis.call('HDEL', KEYS[1], other)
    else
      members[other], living = value, living + 1
      if other ~= id and #other == #id and string.sub(other, 1, name_length + 1) == name then
        namesakes[#namesakes + 1] = other
      end
    end
  end
end
local replaced = redis.call('HGETALL', KEYS[2])
for i = 1, #replaced, 2 do
  if tonumber(replaced[i + 1]) <= now then redis.call('HDEL', KEYS[2], replaced[i]) end
end

local standing, sequence = 'unknown', '0'
if redis.call('HEXISTS', KEYS[2], id) == 1 then
  standing = 'replaced'
elseif members[id] then
  standing, sequence = kind == 'join' and 'joined' or 'alive', string.match(members[id], ':(%d+)$')
  redis.call('HSET', KEYS[1], id, expires .. ':' .. sequence)
  if kind == 'take_over' then
    for _, other in ipairs(namesakes) do
      redis.call('HSET', KEYS[2], other, string.match(members[other], '^%d+'))
      redis.call('HDEL', KEYS[1], other)
      members[other], living = nil, living - 1
    end
  end
elseif kind == 'join' then
  standing, living = 'joined', living + 1
  -- One long value makes Redis keep the hash as a table: a short hash is a list, which is searched from its beginning.
  redis.call('HSETNX', KEYS[3], '!', string.rep('-', 80))
  redis.call('HSET', KEYS[1], id, expires .. ':0')
elseif #namesakes > 0 then
  standing = 'replaced'
end

-- Exact accounts of which only the dead hold something are forgotten, a few with each beat.
if standing == 'alive' then
  local found = redis.call('HSCAN', KEYS[3], sweep, 'COUNT', ARGV[6])
  for i = 1, #found[2], 2 do
    local held = found[2][i] == '!'
    for other in string.gmatch(found[2][i + 1], '([^ ]+)=') do held = held or members[other] end
    if not held then redis.call('HDEL', KEYS[3], found[2][i]) end
  end
  if found[1] ~= sweep then redis.call('HSET', KEYS[1], '?', found[1]) end
end

local number, rebuilt_at = string.match(generation, '^(%d+):(%d+)$')
return {standing, sequence, number, math.max(0, tonumber(rebuilt_at) - now), living}
