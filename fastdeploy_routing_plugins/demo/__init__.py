"""The demo: a small Mixture-of-Experts model rolled out in one process, replayed and checked in another."""
