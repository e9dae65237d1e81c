"""The steps from a store's name to a checked plugin and its options; ``resolver`` is the door."""
