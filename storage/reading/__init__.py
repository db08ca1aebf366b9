"""The consuming side: plans reads, fetches ahead, replaces what is lost."""
