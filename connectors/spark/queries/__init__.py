"""In the driver: run whole queries, whose plans are taken apart at their exchanges."""
