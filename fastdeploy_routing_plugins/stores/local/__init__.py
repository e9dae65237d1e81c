"""Routing as safetensors files in a folder."""
