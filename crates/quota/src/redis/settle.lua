-- Sets what a member holds. Same rule as core/ledger.rs, `settle`, and core/grant.rs.
-- KEYS: exact accounts; with block accounts also: members, replaced, then the block accounts.
-- ARGV: sequence, last acknowledged sequence, '#member'; names of the exact accounts; limit, floor,
-- want of each exact account;
-- limit, floor, want, used, and whether shares outlive replacement (1 or 0) of each block account;
-- with block accounts also: pressure in ms, its channel; last, by what a limit is divided during a
-- rebuild (0: nothing new is granted), and the number of exact accounts.
-- Returns 0, the number n of exact accounts not fully granted, then n times index, count, total,
-- then count, total, used, pressed of each block account.
-- Or returns 1: unknown member, 2: stale settlement, 3: lost writes.

-- All exact accounts are fields of one hash, so that a settlement reads and writes them with one
-- command each.
-- In the same hash, '#' says whether the store rebuilds (1 or 0), and '#member' is the last
-- sequence of a live member.
local found
-- Fast path: one exact account without other holders, and no settlement was lost. Conversions and
-- calls dominate the cost of this script, so it has few.
if #ARGV == 9 then
  local want = ARGV[7]
  found = redis.call('HMGET', KEYS[1], '#', ARGV[3], ARGV[4])
  if found[1] == '0' and found[2] == ARGV[2] and want ~= '0' and tonumber(want) <= tonumber(ARGV[5]) then
    local me, before = string.sub(ARGV[3], 2) .. '=', found[3]
    if not before or before == me .. ARGV[6] then
      redis.call('HSET', KEYS[1], ARGV[3], ARGV[1], ARGV[4], me .. want)
      return {0, 0}
    end
  end
end

local exact = tonumber(ARGV[#ARGV])
found = found or redis.call('HMGET', KEYS[1], '#', unpack(ARGV, 3, 3 + exact))
if not found[1] or not found[2] then return {1} end
local landed = tonumber(found[2])
if tonumber(ARGV[1]) <= landed then return {2} end
if landed < tonumber(ARGV[2]) then return {3} end
local rebuilding, parts = found[1] == '1', tonumber(ARGV[#ARGV - 1])
local closed = rebuilding and parts == 0
local id = string.sub(ARGV[3], 2)
local me = id .. '='

local alive = {}
local function lives(other)
  local answer = alive[other]
  if answer == nil then
    answer = redis.call('HEXISTS', KEYS[1], '#' .. other) == 1
    alive[other] = answer
  end
  return answer
end

local answers, at, short = {0, 0}, 2, 0
local set, sets, delete, deletes = {ARGV[3], ARGV[1]}, 2, {}, 0
local arg, me_length = 4 + exact, #me
for i = 1, exact do
  -- Numbers stay text where possible: converting them back to text is the largest cost here.
  local before, floor, want = found[2 + i], ARGV[arg + 1], ARGV[arg + 2]
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
    local most = closed and 0 or math.min(want, ARGV[arg] - others)
    if most == tonumber(want) then
      count = want
    else
      if most > tonumber(floor) then count = string.format('%.0f', most) end
      answers[at + 1], answers[at + 2], answers[at + 3] = i, tonumber(count), others + count
      at, short = at + 3, short + 1
    end
  end
  if count ~= '0' then
    set[sets + 1], set[sets + 2] = ARGV[3 + i], me .. count .. rest
    sets = sets + 2
  elseif others > 0 then
    set[sets + 1], set[sets + 2] = ARGV[3 + i], string.sub(rest, 2)
    sets = sets + 2
  elseif before then
    deletes = deletes + 1
    delete[deletes] = ARGV[3 + i]
  end
  arg = arg + 3
end
redis.call('HSET', KEYS[1], unpack(set))
if deletes > 0 then redis.call('HDEL', KEYS[1], unpack(delete)) end
answers[2] = short
if #KEYS == 1 then return answers end

local pressure, channel = tonumber(ARGV[#ARGV - 3]), ARGV[#ARGV - 2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Two fields of the members hash are not members.
local living = math.max(1, redis.call('HLEN', KEYS[2]) - 2)
for i = 4, #KEYS do
  local key, limit, floor, want = KEYS[i], tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local used, outlives = tonumber(ARGV[arg + 3]), ARGV[arg + 4] == '1'
  arg = arg + 5
  -- member -> count:used, and '!' -> end of the pressure.
  local others, others_used, pressed_until = 0, 0, 0
  local shares = redis.call('HGETALL', key)
  for j = 1, #shares, 2 do
    local other, share = shares[j], shares[j + 1]
    if other == '!' then
      pressed_until = tonumber(share)
    elseif other ~= id then
      if lives(other) or (outlives and redis.call('HEXISTS', KEYS[3], other) == 1) then
        local count, lent = string.match(share, '^(%d+):(%d+)$')
        others, others_used = others + count, others_used + lent
      else
        redis.call('HDEL', key, other)
      end
    end
  end
  -- Later than possible: written while the clock was ahead.
  if pressed_until > now + pressure then
    pressed_until = now + pressure
    redis.call('HSET', key, '!', string.format('%.0f', pressed_until))
  end
  local ceiling = math.huge
  if closed or (rebuilding and outlives) then
    ceiling = 0
  elseif rebuilding then
    ceiling = math.min(limit, math.max(1, math.floor(limit / parts)))
  end
  local most = math.min(ceiling, math.max(0, limit - others))
  local count = math.max(floor, math.min(want, most))
  if count == want and want > floor and pressed_until <= now then
    count = count + math.floor((most - count) / (2 * living))
  end
  if count < math.min(want, ceiling) then
    if pressed_until <= now then redis.call('PUBLISH', channel, '') end
    pressed_until = now + pressure
    redis.call('HSET', key, '!', string.format('%.0f', pressed_until))
  end
  if pressed_until > 0 and pressed_until <= now then redis.call('HDEL', key, '!') end
  if count > 0 then
    redis.call('HSET', key, id, count .. ':' .. used)
  else
    redis.call('HDEL', key, id)
  end
  answers[at + 1], answers[at + 2] = count, others + count
  answers[at + 3], answers[at + 4] = others_used + used, pressed_until > now and 1 or 0
  at = at + 4
end
return answers
