"""The store that speaks S3: the only folder that imports its clients."""
