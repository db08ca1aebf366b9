"""The consuming side: plans reads, fetches ahead, replaces lost bytes."""
