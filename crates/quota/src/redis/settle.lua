-- Sets what a member holds. The rule is core/ledger.rs, `settle` and `grant`.
-- KEYS: members, replaced, generation, sequences, then the accounts.
-- ARGV: member, sequence, landed, pressure in ms, life of a key in ms, channel for pressure, then for each account: limit, floor, want, used, and
-- how it is shared (0 exactly, 1 in blocks, 2 in blocks that outlive replacement).
-- Returns 0 and four numbers for each account (count, total, used, pressed); or 1: unknown, 2: stale, 3: writes were lost.
-- An exact account is a hash: member -> count. One in blocks: member -> count:used, and '!' -> until when it is pressed.
local members, replaced = KEYS[1], KEYS[2]
local id = ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local mine = redis.call('ZSCORE', members, id)
local generation = redis.call('GET', KEYS[3])
if not generation or not mine or tonumber(mine) <= now then return {1} end
local known, sequence = tonumber(redis.call('HGET', KEYS[4], id) or 0), tonumber(ARGV[2])
if sequence <= known then return {2} end
if known < tonumber(ARGV[3]) then return {3} end
redis.call('HSET', KEYS[4], id, ARGV[2])
local rebuilding = tonumber(string.sub(generation, string.find(generation, ':', 1, true) + 1)) > now

local alive = {}
local function counts(other, outlives)
  local lives = alive[other]
  if lives == nil then
    local expires = redis.call('ZSCORE', members, other)
    lives = expires and tonumber(expires) > now or false
    alive[other] = lives
  end
  if lives or not outlives then return lives end
  local expires = redis.call('ZSCORE', replaced, other)
  return expires and tonumber(expires) > now
end

local function settle_exact(key, limit, floor, want)
  local others, count = 0, floor
  if want > floor then
    local shares, known = redis.call('HGETALL', key), false
    for i = 1, #shares, 2 do
      local other = shares[i]
      if other == id then
        known = true
      elseif counts(other, false) then
        others = others + tonumber(shares[i + 1])
      else
        redis.call('HDEL', key, other)
      end
    end
    if not rebuilding then count = math.max(floor, math.min(want, limit - others)) end
    if count > 0 then
      redis.call('HSET', key, id, count)
      if #shares == 0 then redis.call('PEXPIRE', key, ARGV[5]) end
    elseif known then
      redis.call('HDEL', key, id)
    end
  elseif count > 0 then
    redis.call('HSET', key, id, count)
    redis.call('PEXPIRE', key, ARGV[5])
  else
    redis.call('HDEL', key, id)
  end
  return count, others + count
end

local living
local function settle_blocks(key, limit, floor, want, used, outlives)
  living = living or math.max(1, redis.call('ZCOUNT', members, '(' .. now, '+inf'))
  local others, others_used, pressed_until = 0, 0, 0
  local shares = redis.call('HGETALL', key)
  for i = 1, #shares, 2 do
    local other, share = shares[i], shares[i + 1]
    if other == '!' then
      pressed_until = tonumber(share)
    elseif other ~= id then
      if counts(other, outlives) then
        local colon = string.find(share, ':', 1, true)
        others = others + tonumber(string.sub(share, 1, colon - 1))
        others_used = others_used + tonumber(string.sub(share, colon + 1))
      else
        redis.call('HDEL', key, other)
      end
    end
  end
  local room, count = math.max(0, limit - others), floor
  if not rebuilding then
    count = math.max(floor, math.min(want, room))
    if count == want and want > floor and pressed_until <= now then
      count = count + math.floor((room - count) / (2 * living))
    end
    if count < want then
      if pressed_until <= now then redis.call('PUBLISH', ARGV[6], '') end
      pressed_until = now + tonumber(ARGV[4])
      redis.call('HSET', key, '!', string.format('%.0f', pressed_until))
    end
  end
  if pressed_until > 0 and pressed_until <= now then redis.call('HDEL', key, '!') end
  if count > 0 then
    redis.call('HSET', key, id, count .. ':' .. used)
  else
    redis.call('HDEL', key, id)
  end
  redis.call('PEXPIRE', key, ARGV[5])
  return count, others + count, others_used + used, pressed_until > now and 1 or 0
end

local answers, at = {0}, 1
for i = 5, #KEYS do
  local arg = 5 * (i - 4) + 2
  local limit, floor, want = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local sharing, count, total, used, pressed = ARGV[arg + 4], 0, 0, 0, 0
  if sharing == '0' then
    count, total = settle_exact(KEYS[i], limit, floor, want)
    used = total
  else
    count, total, used, pressed = settle_blocks(KEYS[i], limit, floor, want, tonumber(ARGV[arg + 3]), sharing == '2')
  end
  answers[at + 1], answers[at + 2], answers[at + 3], answers[at + 4] = count, total, used, pressed
  at = at + 4
end
return answers
