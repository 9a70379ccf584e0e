"""Looks at schedulers' decisions: notebooks, a dashboard in the browser, and reports in one file."""
