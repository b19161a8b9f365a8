"""Tables and figures of the papers, one script each; README.md has what they gave."""
