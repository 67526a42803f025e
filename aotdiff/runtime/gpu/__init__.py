"""Running launch plans on a device with many threads."""
