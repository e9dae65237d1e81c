"""The metadata service: who has what. Its protocol, the service itself, its client."""
