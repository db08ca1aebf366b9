"""Bytes: segments, manifests and the stores that hold them. Knows no engine and no broker."""
