-- Takes tokens from a bucket. KEYS: the bucket. ARGV: spacing in us, burst, want.
-- The value is one number: the time, in us, at which the bucket is full again.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local spacing = tonumber(ARGV[1])
local depth = spacing * tonumber(ARGV[2])
local full_at = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0))
local tokens = math.min(tonumber(ARGV[3]), math.floor((now + depth - full_at) / spacing))
if tokens < 1 then return {0, math.max(0, math.ceil(full_at + spacing - now - depth))} end
-- Rounded up, so that whole microseconds never give more than the rate.
full_at = math.ceil(full_at + spacing * tokens)
redis.call('SET', KEYS[1], string.format('%.0f', full_at), 'PX', math.ceil((full_at - now) / 1000) + 1000)
return {tokens, 0}
