"""What pymemcache does with a node: memcached.py HOST:PORT."""

import sys
import time

from pymemcache.client.base import Client, PooledClient
from pymemcache.exceptions import MemcacheClientError

host, port = sys.argv[1].rsplit(":", 1)
client = Client((host, int(port)), timeout=60, connect_timeout=60)


def holds(what, expected):
    assert what == expected, (what, expected)


holds(client.set("a", b"1", noreply=False), True)
holds(client.get("a"), b"1")
holds(client.get("none", b"default"), b"default")
holds(client.add("a", b"2", noreply=False), False)
holds(client.add("b", b"2", noreply=False), True)
holds(client.replace("c", b"3", noreply=False), False)
holds(client.append("b", b"3", noreply=False), True)
holds(client.prepend("b", b"1", noreply=False), True)
holds(client.get_many(["a", "b", "c"]), {"a": b"1", "b": b"123"})
holds(client.set_many({f"k{n}": b"x" * n for n in range(200)}, noreply=False), [])
holds(len(client.get_many([f"k{n}" for n in range(200)])), 200)
value, cas = client.gets("a")
holds(client.cas("a", b"5", cas, noreply=False), True)
holds(client.cas("a", b"6", cas, noreply=False), False)
holds(client.cas("c", b"6", cas, noreply=False), None)
holds(client.incr("a", 7, noreply=False), 12)
holds(client.decr("a", 20, noreply=False), 0)
holds(client.incr("c", 7, noreply=False), None)
try:
    client.set("b", b"text", noreply=False)
    client.incr("b", 1, noreply=False)
    raise AssertionError("text is no number")
except MemcacheClientError:
    pass
holds(client.touch("a", 100, noreply=False), True)
holds(client.get("a"), b"0")
holds(client.delete("a", noreply=False), True)
holds(client.delete("a", noreply=False), False)
holds(client.set("soon", b"x", expire=1, noreply=False), True)
while client.get("soon") is not None:
    time.sleep(0.05)
big = bytes(range(256)) * 4096
holds(client.set("big", big, noreply=False), True)
holds(client.get("big") == big, True)
assert client.version().startswith(b"1.6.18")
holds(client.stats()[b"curr_connections"], 1)
pool = PooledClient((host, int(port)), max_pool_size=4, timeout=60)
holds(pool.set("p", b"q", noreply=False), True)
holds(pool.get("p"), b"q")
holds(client.flush_all(noreply=False), True)
holds(client.get("big"), None)
print("all done")
