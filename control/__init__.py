"""The control plane: records what happens to each partition and decides what follows.

Knows no engine and no object store.
"""

__version__ = "0.1.0"
