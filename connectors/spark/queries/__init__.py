"""In the driver: whole queries, whose plans are taken apart at their exchanges."""
