"""The producing side: sorts batches, takes their fingerprints, stores them as segments."""
