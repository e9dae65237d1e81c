r"""What Redis does in one step, as Lua: the index beside p2pstore's own records.

p2pstore keeps ``p2p:files:KEY``, JSON of who holds the value and which put made it, and the set ``p2p:files:index``.
This package adds, under names that p2pstore does not look at:

* ``fd-routing:names``: sorted set of objects' names, all of score 0, so that a range of it is a prefix in order;
* ``fd-routing:headers``: name to header;
* ``fd-routing:places``: name to ``GENERATION \n DTYPE \n KEY``, where GENERATION is p2pstore's record as it was when
  the object was stored: another one there means that the value was overwritten or deleted by somebody else, and the
  object is gone;
* ``fd-routing:owners``: key to name;
* ``fd-routing:claim:KEY``: who is putting under a key, with an expiry.

The channel ``fd-routing:changed`` tells of every change. Redis runs a script as one step (not across a cluster).
"""

from __future__ import annotations

CHANGED = "fd-routing:changed"
OWNERS = "fd-routing:owners"
FILES = "p2p:files:"
PROVIDERS = "p2p:providers:"

_COMMON = """
local NAMES, HEADERS = 'fd-routing:names', 'fd-routing:headers'
local PLACES, OWNERS, CLAIM = 'fd-routing:places', 'fd-routing:owners', 'fd-routing:claim:'
local function record(key)
  return redis.call('GET', 'p2p:files:' .. key)
end
local function place(name)
  local text = redis.call('HGET', PLACES, name)
  if text then return string.match(text, '^([^\\n]*)\\n([^\\n]*)\\n(.*)$') end
end
local function forget(name, key)
  redis.call('HDEL', HEADERS, name)
  redis.call('HDEL', PLACES, name)
  redis.call('ZREM', NAMES, name)
  if key ~= '' and redis.call('HGET', OWNERS, key) == name then redis.call('HDEL', OWNERS, key) end
end
local function valid(name)
  local generation, dtype, key = place(name)
  if not generation then return nil end
  if key == '' or record(key) == generation then return generation, dtype, key end
  forget(name, key)
  return nil
end
local function drop(key, generation)
  if record(key) ~= generation then return 0 end
  redis.call('DEL', 'p2p:files:' .. key)
  redis.call('SREM', 'p2p:files:index', key)
  local client = string.match(generation, '"client_id": "(%w+)"')
  local put = string.match(generation, '"put_id": (%d+)')
  if client and put then
    redis.call('PUBLISH', 'p2p:events', '{"type": "delete", "file_key": ' .. cjson.encode(key) ..
      ', "client_id": "' .. client .. '", "put_id": ' .. put .. '}')
  end
  return 1
end
local function add(name, header, text)
  redis.call('HSET', HEADERS, name, header)
  redis.call('HSET', PLACES, name, text)
  redis.call('ZADD', NAMES, 0, name)
  redis.call('PUBLISH', 'fd-routing:changed', name)
end
"""

# key, name, token, ms -> ("exists", header, record) | ("busy",) | ("mine", owning name or "", record or "")
CLAIM = (
    _COMMON
    + """
local key, name, token = ARGV[1], ARGV[2], ARGV[3]
local generation = valid(name)
if generation then return {'exists', redis.call('HGET', HEADERS, name), generation} end
local holder = redis.call('GET', CLAIM .. key)
if holder and holder ~= token then return {'busy'} end
redis.call('SET', CLAIM .. key, token, 'PX', ARGV[4])
local owner = redis.call('HGET', OWNERS, key)
if owner and not valid(owner) then owner = false end
return {'mine', owner or '', record(key) or ''}
"""
)

# key, token -> nothing
RELEASE = (
    _COMMON + "if redis.call('GET', CLAIM .. ARGV[1]) == ARGV[2] then redis.call('DEL', CLAIM .. ARGV[1]) end return 0"
)

# key, name, token, header, generation, dtype -> 1: stored; 0: the claim is gone; -1: the value is
COMMIT = (
    _COMMON
    + """
local key, name, generation = ARGV[1], ARGV[2], ARGV[5]
local text = generation .. '\\n' .. ARGV[6] .. '\\n' .. key
if redis.call('HGET', PLACES, name) == text then return 1 end
if redis.call('GET', CLAIM .. key) ~= ARGV[3] then return 0 end
if record(key) ~= generation then return -1 end
add(name, ARGV[4], text)
redis.call('HSET', OWNERS, key, name)
redis.call('DEL', CLAIM .. key)
return 1
"""
)

# name, header -> the stored header, or nil if it was stored now: an object without a payload needs no p2pstore
MARK = (
    _COMMON
    + """
if valid(ARGV[1]) then return redis.call('HGET', HEADERS, ARGV[1]) end
add(ARGV[1], ARGV[2], '\\n\\n')
return false
"""
)

# names -> header and place of each, or nil twice
READ = (
    _COMMON
    + """
local found = {}
for at, name in ipairs(ARGV) do
  local here = valid(name)
  found[2 * at - 1] = here and redis.call('HGET', HEADERS, name) or false
  found[2 * at] = here and redis.call('HGET', PLACES, name) or false
end
return found
"""
)

# first, last, count -> the last name that was looked at, or "" at the end; then the names
LIST = (
    _COMMON
    + """
local names = redis.call('ZRANGEBYLEX', NAMES, ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
local found = {#names == tonumber(ARGV[3]) and names[#names] or ''}
for _, name in ipairs(names) do
  if valid(name) then found[#found + 1] = name end
end
return found
"""
)

# names -> how many were there
DELETE = (
    _COMMON
    + """
local count = 0
for _, name in ipairs(ARGV) do
  local generation, _, key = valid(name)
  if generation then
    if key ~= '' then drop(key, generation) end
    forget(name, key)
    count = count + 1
  end
end
if count > 0 then redis.call('PUBLISH', 'fd-routing:changed', '') end
return count
"""
)

# key, generation -> 1 if that value was there
DROP = (
    _COMMON
    + """
local gone = drop(ARGV[1], ARGV[2])
if gone > 0 then redis.call('PUBLISH', 'fd-routing:changed', '') end
return gone
"""
)
