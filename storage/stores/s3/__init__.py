"""The store on S3, in the only folder that imports S3 clients."""
