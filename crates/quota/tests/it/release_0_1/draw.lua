-- Takes tokens out of a bucket. The rule is core/bucket.rs. KEYS: the bucket. ARGV: spacing in us, burst, want.
-- The bucket is one number: the time, in us, at which it is full again.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local spacing = tonumber(ARGV[1])
local depth = spacing * tonumber(ARGV[2])
local full_at = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0))
local tokens = math.min(tonumber(ARGV[3]), math.floor((now + depth - full_at) / spacing))
if tokens < 1 then return {0, math.max(0, math.ceil(full_at + spacing - now - depth))} end
-- Rounded up: what is kept in whole us must not give more than the rate.
full_at = math.ceil(full_at + spacing * tokens)
redis.call('SET', KEYS[1], string.format('%.0f', full_at), 'PX', math.ceil((full_at - now) / 1000) + 1000)
return {tokens, 0}
