"""The conformance kit: proves that a store keeps the contract."""
