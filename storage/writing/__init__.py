"""The producing side: sorts batches and stores them as segments."""
