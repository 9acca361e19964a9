"""How it is checked for hours: campaigns, shrinking, reports, and the command line."""
