-- A sign of life. The rule is core/ledger.rs, `beat`.
-- KEYS: members, replaced, generation, sequences. ARGV: member, length of its name, kind, ttl in ms, new generation.
local members, replaced, generation_key, sequences = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, name_length, kind, ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local dead = redis.call('ZRANGEBYSCORE', members, '-inf', now)
if #dead > 0 then
  redis.call('ZREMRANGEBYSCORE', members, '-inf', now)
  for _, other in ipairs(dead) do redis.call('HDEL', sequences, other) end
end
redis.call('ZREMRANGEBYSCORE', replaced, '-inf', now)

local generation = redis.call('GET', generation_key)
if not generation then
  generation = ARGV[5] .. ':' .. string.format('%.0f', now + ttl)
  redis.call('SET', generation_key, generation)
end
local colon = string.find(generation, ':', 1, true)
local rebuild_left = math.max(0, tonumber(string.sub(generation, colon + 1)) - now)

-- Other incarnations of the same name: name, colon, sixteen characters of epoch.
local name, namesakes = string.sub(id, 1, name_length), {}
if kind ~= 'join' then
  for _, other in ipairs(redis.call('ZRANGE', members, 0, -1)) do
    if other ~= id and #other == #id and string.sub(other, 1, name_length + 1) == name .. ':' then
      namesakes[#namesakes + 1] = other
    end
  end
end

local standing, sequence = 'unknown', '0'
if redis.call('ZSCORE', replaced, id) then
  standing = 'replaced'
elseif kind == 'join' then
  standing = 'joined'
  redis.call('ZADD', members, now + ttl, id)
elseif redis.call('ZSCORE', members, id) then
  standing, sequence = 'alive', redis.call('HGET', sequences, id) or '0'
  redis.call('ZADD', members, now + ttl, id)
  if kind == 'take_over' then
    for _, other in ipairs(namesakes) do
      redis.call('ZADD', replaced, redis.call('ZSCORE', members, other), other)
      redis.call('ZREM', members, other)
      redis.call('HDEL', sequences, other)
    end
  end
elseif #namesakes > 0 then
  standing = 'replaced'
end
return {standing, sequence, string.sub(generation, 1, colon - 1), rebuild_left, redis.call('ZCARD', members)}
