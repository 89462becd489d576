-- Takes tokens from a bucket. Same rule as core/bucket.rs.
-- KEYS: the bucket. ARGV: spacing in us, burst, want.
-- The value is 'full_at.depth', both in us: when the bucket is full again, and how long an empty
-- one takes to fill by the last draw's burst.
-- Release 0.1 reads and writes full_at alone; it takes the depth for a fraction of a microsecond.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local spacing = tonumber(ARGV[1])
local own_depth = spacing * tonumber(ARGV[2])
local full_at, depth = string.match(redis.call('GET', KEYS[1]) or '0', '^(%d+)%.?(%d*)$')
full_at, depth = tonumber(full_at) or 0, tonumber(depth) or own_depth
local function keep()
  -- PX takes whole numbers, and Lua writes larger ones with an exponent.
  local lasts = math.min(1e15, math.ceil((full_at - now) / 1000) + 1000)
  redis.call('SET', KEYS[1], string.format('%.0f.%.0f', full_at, depth), 'PX', lasts)
end

-- A full_at later than now + depth was written while the clock was ahead: the bucket counts as
-- empty.
if full_at > now + depth then
  full_at = math.ceil(now + depth)
  keep()
end
full_at = math.max(now, full_at)
local tokens = math.min(tonumber(ARGV[3]), math.floor((now + own_depth - full_at) / spacing))
if tokens < 1 then return {0, math.max(0, math.ceil(full_at + spacing - now - own_depth))} end
-- Rounded up, so that whole microseconds never give more than the rate.
full_at, depth = math.ceil(full_at + spacing * tokens), math.ceil(own_depth)
keep()
return {tokens, 0}
