"""The rules of compaction: how each kind of operation treats channels, and how it is rebuilt with fewer of them.

Each file also has the functions that decide whether a rule applies to a call; `operations` maps operations to them.
"""
