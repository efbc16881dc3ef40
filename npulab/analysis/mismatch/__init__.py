"""Why an output differs: a summary of the mismatches, hypotheses, a run of a whole model."""
