-- Heartbeat of a member. Time advances only here: members expire and rebuilds end. Same rule as
-- core/ledger.rs, `heartbeat`.
-- KEYS: exact accounts, members, replaced, TTLs, reports.
-- ARGV: member, length of its name, kind, TTL in ms, new generation, number of exact accounts to
-- sweep, members before the rebuild, whether the member has reported to it (1 or 0).
-- Members hash: member -> expiry, '!' -> generation:end of its rebuild, '?' -> cursor of the sweep.
-- Exact accounts hash: '#member' -> sequence of a live member, '#' -> whether the store rebuilds (1
-- or 0).
-- TTLs hash: member -> TTL in ms, of live and replaced members. Members of release 0.1 have no
-- entry: their expiries are left as they are, and their TTL is taken to be ARGV's.
-- Reports hash of a rebuild: member -> members before:has reported, '!' -> generation:time from
-- which the rebuild may end early:members that the store knew before. If a heartbeat of release 0.1
-- ends the rebuild, the hash stays until the next one begins.
-- Members of release 0.1 have no entry, so the rebuild doesn't end early while one is expected.
local id, name_length, kind, ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function whole(number) return string.format('%.0f', number) end
local expires = whole(now + ttl)

-- A member expires at most its TTL from now: a later expiry was written while the clock was ahead.
local function expiry(key, member, value)
  local at = tonumber(value)
  if at > now + ttl then
    local life = tonumber(redis.call('HGET', KEYS[4], member) or false)
    if life and at > now + life then
      at, value = now + life, whole(now + life)
      redis.call('HSET', key, member, value)
    end
  end
  return at, value
end

-- Live members. Other incarnations of the sender have its name, a colon, and an epoch of sixteen
-- characters.
local members, living, sweep, dead, generation = {}, 0, '0', {}, nil
local name, namesakes = string.sub(id, 1, name_length) .. ':', {}
local function is_namesake(other) return #other == #id and string.sub(other, 1, name_length + 1) == name end
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do
  local other, value = all[i], all[i + 1]
  if other == '?' then
    sweep = value
  elseif other == '!' then
    generation = value
  else
    local at
    at, value = expiry(KEYS[2], other, value)
    if at <= now then
      dead[#dead + 1] = {other, at}
    else
      members[other], living = value, living + 1
      if other ~= id and is_namesake(other) then namesakes[#namesakes + 1] = other end
    end
  end
end

-- Members that expired while no heartbeat reached the store may be alive: `silenced` is the longest
-- of their TTLs.
-- A rebuild without heartbeats for half a TTL starts again.
local silenced, known_before, last_beat, longest = 0, living, nil, ttl
local was_rebuilding = redis.call('HGET', KEYS[1], '#') == '1'
if #dead > 0 or was_rebuilding then
  local lives, pairs_of_lives = {}, redis.call('HGETALL', KEYS[4])
  for i = 1, #pairs_of_lives, 2 do
    lives[pairs_of_lives[i]] = tonumber(pairs_of_lives[i + 1])
    longest = math.max(longest, lives[pairs_of_lives[i]])
  end
  local function heard(other, at) last_beat = math.max(last_beat or 0, at - (lives[other] or ttl)) end
  for other, value in pairs(members) do heard(other, tonumber(value)) end
  for _, each in ipairs(dead) do heard(each[1], each[2]) end
  for _, each in ipairs(dead) do
    local other, at = each[1], each[2]
    local life = lives[other] or ttl
    if not is_namesake(other) and at - life / 2 >= last_beat then
      silenced, known_before = math.max(silenced, life), known_before + 1
    end
    redis.call('HDEL', KEYS[2], other)
    redis.call('HDEL', KEYS[1], '#' .. other)
    redis.call('HDEL', KEYS[4], other)
  end
end

local number, rebuilt_at
if generation then
  number, rebuilt_at = string.match(generation, '^(%d+):(%d+)$')
else
  number, rebuilt_at = ARGV[5], expires
  redis.call('HSET', KEYS[2], '?', 0)
end
-- A rebuild lasts at most the longest TTL: a later end was written while the clock was ahead.
local rebuild_left = math.max(silenced, math.min(longest, math.max(0, tonumber(rebuilt_at) - now)))
local cut_short, would_end_at = last_beat and last_beat + ttl / 2 <= now, tonumber(rebuilt_at)
if was_rebuilding and (cut_short or not last_beat) then rebuild_left = longest end
if rebuild_left > 0 then rebuilt_at = whole(now + rebuild_left) end

local replaced, replaced_count = redis.call('HGETALL', KEYS[3]), 0
for i = 1, #replaced, 2 do
  if expiry(KEYS[3], replaced[i], replaced[i + 1]) <= now then
    redis.call('HDEL', KEYS[3], replaced[i])
    if not members[replaced[i]] then redis.call('HDEL', KEYS[4], replaced[i]) end
  else
    replaced_count = replaced_count + 1
  end
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
      replaced_count = replaced_count + 1
    end
  end
elseif kind == 'join' then
  standing, living = 'joined', living + (members[id] and 0 or 1)
  redis.call('HSET', KEYS[2], id, expires)
  redis.call('HSET', KEYS[4], id, whole(ttl))
  -- One long value makes Redis store the hash as a hash table. A short hash is a list with linear
  -- search.
  redis.call('HSET', KEYS[1], '#' .. id, 0, '!', string.rep('-', 80))
elseif #namesakes > 0 then
  standing = 'replaced'
end

-- The rebuild ends early if all members that are known to have been alive before have reported.
local expected = 0
if rebuild_left > 0 then
  local marked = redis.call('HGET', KEYS[5], '!') or ''
  local of, may_end_at, known = string.match(marked, '^(%d+):(%d+):(%d+)$')
  if not was_rebuilding or of ~= number then
    redis.call('DEL', KEYS[5])
    may_end_at, known = whole(now + longest / 2), generation and not was_rebuilding and known_before or 0
  end
  -- Members that joined during this rebuild may have expired: it doesn't end early.
  if was_rebuilding and (cut_short or silenced > 0 or tonumber(may_end_at) >= would_end_at) then
    may_end_at = rebuilt_at
  elseif was_rebuilding and not last_beat then
    may_end_at = whole(now + longest / 2)
  end
  local mark = number .. ':' .. may_end_at .. ':' .. known
  if mark ~= marked then redis.call('HSET', KEYS[5], '!', mark) end
  if standing == 'alive' or standing == 'joined' then
    redis.call('HSET', KEYS[5], id, ARGV[7] .. ':' .. ARGV[8])
    members[id] = members[id] or expires
  end
  local reported, reports = 0, redis.call('HGETALL', KEYS[5])
  expected = tonumber(known)
  for i = 1, #reports, 2 do
    if members[reports[i]] then
      local before, has_reported = string.match(reports[i + 1], '^(%d+):(%d)$')
      expected = math.max(expected, tonumber(before) or 0)
      reported = reported + (tonumber(has_reported) or 0)
    end
  end
  if expected > 0 and reported >= expected and tonumber(may_end_at) - now < rebuild_left then
    rebuild_left = math.max(0, tonumber(may_end_at) - now)
    if rebuild_left == 0 then rebuilt_at, expected = whole(now), 0 end
  end
end
if rebuild_left == 0 and was_rebuilding then redis.call('DEL', KEYS[5]) end
if generation ~= number .. ':' .. rebuilt_at then redis.call('HSET', KEYS[2], '!', number .. ':' .. rebuilt_at) end
redis.call('HSET', KEYS[1], '#', rebuild_left > 0 and 1 or 0)

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
  -- Release 0.1 removes members but not their TTLs.
  if redis.call('HLEN', KEYS[4]) > living + replaced_count then
    for _, other in ipairs(redis.call('HKEYS', KEYS[4])) do
      local gone = not members[other] and redis.call('HEXISTS', KEYS[3], other) == 0
      if gone then redis.call('HDEL', KEYS[4], other) end
    end
  end
end
return {standing, sequence, number, rebuild_left, living, expected}
