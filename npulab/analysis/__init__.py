"""The questions: check, diff, bisect, laws, scan, correlate, mismatches, probes, drafts of maps."""
