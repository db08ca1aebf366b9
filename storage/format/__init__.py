"""The objects' names and bytes: segments, fingerprints, manifests."""
