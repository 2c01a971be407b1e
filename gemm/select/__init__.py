"""Select the kernel and the device for a product: the candidate with the least predicted time."""
