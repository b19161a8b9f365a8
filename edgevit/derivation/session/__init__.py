"""What a derivation does around its method: open base and images, check, take baselines, judge, write the folder."""
