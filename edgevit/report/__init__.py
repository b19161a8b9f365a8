"""Tables and comparisons: pure functions of records. They compute, `cli/` prints."""
