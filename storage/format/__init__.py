"""The objects' names and bytes: segments and manifests."""
