"""The trainer side: reading routing one by one and in batches, for the layers and tokens that a rank needs."""
