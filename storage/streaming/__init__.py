"""Reading of results that are still being written. No engine asks for it yet."""
