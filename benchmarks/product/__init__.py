"""Questions that a user of edgevit asks, each answered by one script and one screen of RESULTS.md."""
