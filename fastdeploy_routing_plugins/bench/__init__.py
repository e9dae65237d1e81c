"""What ``fd-routing bench`` measures: stores beside other ways from one process to another, in two processes."""
