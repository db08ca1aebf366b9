"""Reading and writing of results that are read while they are written. No engine uses this yet."""
