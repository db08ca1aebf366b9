"""The object-store port, its stores, and how requests are tried again."""
