"""The engine side: ``RoutingWriter`` hands routing over, a store worker stores it.

``routing_writer`` is what an engine calls, ``supervisor`` keeps the worker running, ``ledger`` knows what is pending,
and ``tickets`` tell how it ended; ``worker``, ``dispatch``, ``executing``, ``tasks`` and ``adoption`` are the worker's
side; ``operations`` and ``messages`` are what the two say to each other.
"""
