"""The shell: pages, the command line and the API, built from what a lab declares. Knows no lab by name."""
