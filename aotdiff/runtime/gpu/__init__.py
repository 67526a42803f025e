"""Running on GPUs: finding the driver, device arrays and streams, devices that run launch plans."""
