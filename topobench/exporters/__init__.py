"""
Topologies in the formats of other tools: pure functions, a topology in, text out.

Nothing here opens a file. What a format has no place for is left out, never made up.
"""
