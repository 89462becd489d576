-- Sets what a member holds. The rule is core/ledger.rs, `settle` and `grant`.
-- KEYS: members, replaced, exact accounts, then the accounts in blocks.
-- ARGV: member, sequence, landed, pressure in ms, life of an account in ms, channel for pressure, how many exact accounts;
-- then their names; then for each of them: limit, floor, want; then for each account in blocks: limit, floor, want, used,
-- and whether shares outlive replacement (1 or 0).
-- Returns 0, how many exact accounts fell short, for each of those its place, count and total, and for each account in blocks
-- count, total, used, pressed. Or 1: the member is unknown, 2: the settlement is stale, 3: writes were lost.
local id, sequence = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- A member is expiry:sequence; the generation is number:end of its rebuilding.
local known = redis.call('HMGET', KEYS[1], id, '!')
if not known[1] or not known[2] then return {1} end
local expires, landed = string.match(known[1], '^(%d+):(%d+)$')
if tonumber(expires) <= now then return {1} end
landed = tonumber(landed)
if sequence <= landed then return {2} end
if landed < tonumber(ARGV[3]) then return {3} end
redis.call('HSET', KEYS[1], id, expires .. ':' .. ARGV[2])
local rebuilding = tonumber(string.match(known[2], ':(%d+)$')) > now

local alive = {}
local function lives(other)
  local answer = alive[other]
  if answer == nil then
    local member = redis.call('HGET', KEYS[1], other)
    answer = member and tonumber(string.match(member, '^%d+')) > now or false
    alive[other] = answer
  end
  return answer
end

local answers, at, short = {0, 0}, 2, 0
local exact = tonumber(ARGV[7])
if exact > 0 then
  -- All exact accounts are fields of one hash, so that a settlement reads and writes them in one command each.
  local shares = redis.call('HMGET', KEYS[3], unpack(ARGV, 8, 7 + exact))
  local set, sets, delete, deletes = {}, 0, {}, 0
  local me, arg = id .. '=', 8 + exact
  local me_length = #me
  for i = 1, exact do
    -- Numbers stay text where they can: turning them into text again is what costs most here.
    local before, floor, want = shares[i], ARGV[arg + 1], ARGV[arg + 2]
    local others, rest, count = 0, '', floor
    local only_me = before and string.sub(before, 1, me_length) == me and not string.find(before, ' ', me_length, true)
    if before and not only_me then
      -- member=count, separated by spaces.
      for other, held in string.gmatch(before, '([^ ]+)=(%d+)') do
        if other ~= id and lives(other) then
          others = others + held
          rest = rest .. ' ' .. other .. '=' .. held
        end
      end
    end
    if want ~= floor then
      local most = rebuilding and 0 or math.min(want, ARGV[arg] - others)
      if most == tonumber(want) then
        count = want
      else
        if most > tonumber(floor) then count = string.format('%.0f', most) end
        answers[at + 1], answers[at + 2], answers[at + 3] = i, tonumber(count), others + count
        at, short = at + 3, short + 1
      end
    end
    if count ~= '0' then
      set[sets + 1], set[sets + 2] = ARGV[7 + i], me .. count .. rest
      sets = sets + 2
    elseif others > 0 then
      set[sets + 1], set[sets + 2] = ARGV[7 + i], string.sub(rest, 2)
      sets = sets + 2
    elseif before then
      deletes = deletes + 1
      delete[deletes] = ARGV[7 + i]
    end
    arg = arg + 3
  end
  if sets > 0 then redis.call('HSET', KEYS[3], unpack(set)) end
  if deletes > 0 then redis.call('HDEL', KEYS[3], unpack(delete)) end
end
answers[2] = short

local arg, living = 8 + 4 * exact, nil
for i = 4, #KEYS do
  local key, limit, floor, want = KEYS[i], tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local used, outlives = tonumber(ARGV[arg + 3]), ARGV[arg + 4] == '1'
  arg = arg + 5
  -- Two fields of the members' hash are not members.
  living = living or math.max(1, redis.call('HLEN', KEYS[1]) - 2)
  local others, others_used, pressed_until = 0, 0, 0
  local shares = redis.call('HGETALL', key)
  for j = 1, #shares, 2 do
    local other, share = shares[j], shares[j + 1]
    if other == '!' then
      pressed_until = tonumber(share)
    elseif other ~= id then
      if lives(other) or (outlives and tonumber(redis.call('HGET', KEYS[2], other) or 0) > now) then
        local count, lent = string.match(share, '^(%d+):(%d+)$')
        others, others_used = others + count, others_used + lent
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
  answers[at + 1], answers[at + 2] = count, others + count
  answers[at + 3], answers[at + 4] = others_used + used, pressed_until > now and 1 or 0
  at = at + 4
end
return answers
